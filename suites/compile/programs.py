"""Functions that contain autocast regions, and helpers that run one in an ambient region, eagerly or compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import relative_error, tolerance
from pytest_amp.precision import dtype_name

from .releases import DTYPE_IS_GUARDED

Tensors = list[torch.Tensor]
#: Function of a batch and matrices. It uses each matrix once: a second use would hit eager's autocast weight cache.
Program = Callable[[torch.Tensor, Tensors], Tensors]

#: The other low-precision dtype, which an inner region may use.
OTHER = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}
#: Ambient states in which a compiled function is called, in this order. Without a guard on the autocast dtype
#: (releases.DTYPE_IS_GUARDED, checked by test_recompilation.py) a call in the other dtype reuses the compiled code of
#: the first, and would test nothing of the regions inside.
AMBIENT = ("none", "low", "other", "disabled") if DTYPE_IS_GUARDED else ("none", "low", "disabled")
#: ``aot_eager`` traces Dynamo's graphs with AOTAutograd, so it shows Dynamo's errors, too.
BACKENDS = pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.amp_long), "aot_eager"])
_SIZE = 16
_MATRICES = 6


def ambient(amp: SuiteAmp, kind: str) -> contextlib.AbstractContextManager[None]:
    """Return the region in which a function is called."""
    if kind == "none":
        return contextlib.nullcontext()
    return amp.autocast(dtype=OTHER[amp.dtype] if kind == "other" else amp.dtype, enabled=kind != "disabled")


def programs(device_type: str, low: torch.dtype) -> Mapping[str, Program]:  # noqa: C901, PLR0915  # one table
    """Return the programs by name, one for each way in which a function can contain a region."""
    other = OTHER[low]

    def none(x: torch.Tensor, w: Tensors) -> Tensors:
        return [x @ w[0], torch.nn.functional.linear(x, w[1])]

    def same_dtype(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, low):
            inside = x @ w[0]
        return [inside, x @ w[1]]

    def other_dtype(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, other):
            inside = x @ w[0]
        return [inside, x @ w[1]]

    def disabled(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, enabled=False):
            inside = x @ w[0]
        return [inside, x @ w[1]]

    def island(x: torch.Tensor, w: Tensors) -> Tensors:
        hidden = x @ w[0]
        with torch.autocast(device_type, enabled=False):
            float32 = hidden.to(w[1].dtype) @ w[1]
        return [float32, float32 @ w[2]]

    def nested(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, low):
            outer = x @ w[0]
            with torch.autocast(device_type, enabled=False):
                float32 = x @ w[1]
                with torch.autocast(device_type, low):
                    again = x @ w[2]
            with torch.autocast(device_type, other):
                inner = x @ w[3]
            last = x @ w[4]
        return [outer, float32, again, inner, last, x @ w[5]]

    @torch.autocast(device_type, low)
    def _in_low(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    @torch.autocast(device_type, enabled=False)
    def _in_none(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    def decorated(x: torch.Tensor, w: Tensors) -> Tensors:
        return [_in_low(x, w[0]), _in_none(x, w[1]), x @ w[2]]

    def _returns_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type, low):
            return x @ w

    def left_by_return(x: torch.Tensor, w: Tensors) -> Tensors:
        return [_returns_inside(x, w[0]), x @ w[1]]

    def in_a_loop(x: torch.Tensor, w: Tensors) -> Tensors:
        rows = []
        for index, matrix in enumerate(w):
            with torch.autocast(device_type, low, enabled=index % 2 == 0):
                rows.append(x @ matrix)
        return rows

    def conditional(x: torch.Tensor, w: Tensors) -> Tensors:
        rows = []
        for index, matrix in enumerate(w[:2]):
            with torch.autocast(device_type, low) if index else contextlib.nullcontext():
                rows.append(x @ matrix)
        return rows

    def without_cache(x: torch.Tensor, w: Tensors) -> Tensors:
        with torch.autocast(device_type, low, cache_enabled=False):
            inside = x @ w[0]
        return [inside, x @ w[1]]

    def asks(x: torch.Tensor, w: Tensors) -> Tensors:
        if torch.is_autocast_enabled(device_type):
            return [(x * 2).to(torch.get_autocast_dtype(device_type)), x @ w[0]]
        return [x @ w[0] * 3]

    def checkpointed(x: torch.Tensor, w: Tensors) -> Tensors:
        def block(hidden: torch.Tensor) -> torch.Tensor:
            return torch.tanh(hidden @ w[0]) @ w[1]

        with torch.autocast(device_type, low):
            inside: torch.Tensor = checkpoint(block, x, use_reentrant=False)
        outside: torch.Tensor = checkpoint(lambda hidden: torch.tanh(hidden @ w[2]) @ w[3], x, use_reentrant=False)
        return [inside, outside]

    def checkpointed_island(x: torch.Tensor, w: Tensors) -> Tensors:
        def block(hidden: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device_type, enabled=False):
                return torch.tanh(hidden @ w[0]) @ w[1]

        output: torch.Tensor = checkpoint(block, x, use_reentrant=False)
        return [output]

    local = {name: value for name, value in locals().items() if callable(value) and not name.startswith("_")}
    return {name.replace("_", " "): function for name, function in local.items()}


#: Names of the programs, for ids; the functions are built for each device and dtype.
NAMES = tuple(programs("cpu", torch.bfloat16))


@dataclass(frozen=True)
class Ran:
    """Outputs of one call, and the gradients of its batch and matrices."""

    outputs: Tensors
    gradients: list[torch.Tensor | None]

    def dtypes(self) -> list[str]:
        """Return the names of the outputs' dtypes, as observations record them."""
        return [dtype_name(value.dtype) for value in self.outputs]


def evaluate(amp: SuiteAmp, program: Program, kind: str, *, dtype: torch.dtype = torch.float32) -> Ran:
    """Call a program once in an ambient region under ``no_grad``, which halves the compile time."""
    batch, *matrices = _drawn(amp, dtype, _SIZE)
    with torch.no_grad(), ambient(amp, kind):
        outputs = program(batch.clone(), matrices)
    return Ran([output.clone() for output in outputs], [])


def _drawn(amp: SuiteAmp, dtype: torch.dtype, size: int) -> Tensors:
    """Return a seeded batch and seeded matrices, the same in every call."""
    torch.manual_seed(amp.config.seed)
    drawn = [torch.randn(size, size) for _ in range(1 + _MATRICES)]
    return [tensor.to(amp.device.torch_device, dtype).requires_grad_() for tensor in drawn]


def run(  # noqa: PLR0913  # computation, place, and inputs
    amp: SuiteAmp,
    program: Program,
    kind: str,
    *,
    dtype: torch.dtype = torch.float32,
    inside: bool = False,
    size: int = _SIZE,
    scales: Sequence[float] | None = None,
) -> Ran:
    """Call a function in an ambient region, and run backward outside of it, or ``inside``.

    ``scales`` are factors of the outputs' parts of the loss; 1 each by default.
    """
    batch, *matrices = _drawn(amp, dtype, size)
    with ambient(amp, kind):
        # The clone is not a leaf: autocast caches casts of leaves only.
        outputs = program(batch.clone(), matrices)
        parts = [output.to(dtype).square().mean() for output in outputs]
        loss = torch.stack(
            [part * scale for part, scale in zip(parts, scales or [1.0] * len(parts), strict=True)]
        ).sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    gradients = [None if tensor.grad is None else tensor.grad.clone() for tensor in (batch, *matrices)]
    return Ran([output.detach().clone() for output in outputs], gradients)


#: Factor by which gradients of these programs, 0.01 and more, exceed the range of fp16, and not that of bf16.
_BEYOND_FP16 = 2.0**30


def beyond_fp16(amp: SuiteAmp, program: Program, kind: str) -> list[float]:
    """Return factors of the loss by which gradients of bf16 outputs exceed the range of fp16.

    Kernels of an accelerator that sum in another order hide that the gradient of a product in bf16 is computed in fp16,
    which is the more exact of the two. With these factors it is infinite.
    """
    outputs = evaluate(amp, program, kind).outputs
    return [_BEYOND_FP16 if output.dtype is torch.bfloat16 else 1.0 for output in outputs]


def expect_same_dtypes(amp: SuiteAmp, what: str, actual: Ran, eager: Ran) -> None:
    """Raise AmpFailure unless the outputs have the dtypes of eager, in the same order."""
    if actual.dtypes() != eager.dtypes():
        raise AmpFailure(
            f"{what} on {amp.target.id} computes in different dtypes when it is compiled",
            label_before="eager",
            before=", ".join(eager.dtypes()),
            now=f"{', '.join(actual.dtypes())} on torch {torch.__version__}, {amp.device.describe()}",
            likely="the compiled function does not follow the region it is called in, or one inside it",
        )


def expect_same_values(  # noqa: PLR0913  # values, reference, and computation
    amp: SuiteAmp,
    what: str,
    actual: Sequence[torch.Tensor | None],
    eager: Sequence[torch.Tensor | None],
    exact: Ran,
    *,
    fused: bool = False,
) -> None:
    """Raise AmpFailure unless values equal eager's: bitwise on a CPU, up to the order of summation on other devices.

    Kernels that sum in a different order may differ by MEDIAN_DISTANCE times eager's error against float64, as in the
    oracle (``pytest_amp.numerics.tolerance``). ``fused`` kernels round less often: they may differ by WORST_DISTANCE
    times that error.
    """
    share = tolerance.WORST_DISTANCE if fused else tolerance.MEDIAN_DISTANCE
    reference = [*exact.outputs, *exact.gradients][-len(eager) :] if eager else []
    for index, (result, expected, known) in enumerate(zip(actual, eager, reference, strict=True)):
        if (result is None) != (expected is None):
            raise AmpFailure(
                f"{what} on {amp.target.id}: tensor {index} has a gradient in one of eager and compiled only"
            )
        if result is None or expected is None or torch.equal(result, expected):
            continue
        assert known is not None
        far = relative_error(result, expected)
        noise = max(relative_error(expected, known), tolerance.floor(expected.numel(), amp.precision.u))
        allowed = 0.0 if amp.device.kind is DeviceKind.CPU and not fused else share * noise
        if result.dtype is not expected.dtype or not far <= allowed * amp.config.tolerance_scale:
            raise AmpFailure(
                f"{what} on {amp.target.id}: tensor {index} is not eager's, but {far:.2g} from it",
                label_before="eager",
                before=f"{expected.dtype}, {relative_error(expected, known):.2g} from float64",
                now=f"{result.dtype}, {relative_error(result, known):.2g} from float64, on torch {torch.__version__}",
                likely="the compiled graph casts where eager does not, or runs backward in another region",
            )
