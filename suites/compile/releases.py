"""Known faults of torch in some of the releases that the suite runs on, all in one place.

Run on torch 2.6.0, 2.7.1, 2.8.0, 2.9.1, 2.11.0, 2.12.1, 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import pytest
import torch

from pytest_amp.data_files.releases import release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target

RELEASE = release_of(torch.__version__)

_BACKWARD = (
    "pytorch/pytorch#179804, #153044: AOTAutograd traces backward in the region in which the function is called, "
    "whatever regions are inside of it"
)
BACKWARD = pytest.mark.xfail(strict=True, raises=AmpFailure, reason=_BACKWARD)
#: If products in bf16 have their backward traced in fp16, which is the finer of the two, an accelerator's kernels do
#: not show it; if those in fp16 have it in bf16 they do: on ``precision``.
BACKWARD_IN_THE_OTHER = {
    precision: pytest.mark.amp(xfail={"cpu": _BACKWARD, f"cuda-{precision}": _BACKWARD})
    for precision in ("bf16", "fp16")
}
HAS_BACKWARD_SETTING = pytest.mark.skipif(
    RELEASE < (2, 9), reason="torch has backward_pass_autocast since 2.9 (pytorch/pytorch#156356)"
)

#: In earlier releases code that was compiled for one dtype runs in a region of the other.
DTYPE_IS_GUARDED = RELEASE >= (2, 7)
GUARDS_DTYPE = pytest.mark.xfail(
    not DTYPE_IS_GUARDED,
    strict=True,
    reason="pytorch/pytorch#112260: autocast's state is no guard of compiled code (mended by #143592)",
)
#: Inductor reads code for the other dtype from the cache on disk; torch 2.6 reads that cache only on request.
CACHE_KEY = pytest.mark.xfail(
    (2, 7) <= RELEASE < (2, 13),
    strict=True,
    raises=AssertionError,
    reason="pytorch/pytorch#181564: AOTAutograd's cache knows whether autocast was on, and not in which dtype",
)
ATTENTION_TWICE = pytest.mark.xfail(
    RELEASE == (2, 7),
    strict=True,
    raises=AmpFailure,
    reason="no report found: compiled code computes attention once more going back (torch 2.7.1; not 2.6.0 and 2.8.0)",
)
CONSTANT_SUMS = pytest.mark.xfail(
    RELEASE < (2, 14),
    strict=True,
    raises=AmpFailure,
    reason="pytorch/pytorch#189518: the range that inductor makes of cumsum over a constant has the constant's dtype",
)
ROUND_TRIP = pytest.mark.xfail(
    strict=True,
    raises=AmpFailure,
    reason="pytorch/pytorch#179561: inductor drops a round trip to a low dtype that the user asked for",
)
EMULATED = pytest.mark.xfail(
    RELEASE < (2, 13),
    strict=True,
    raises=AmpFailure,
    reason="pytorch/pytorch#179561: emulate_precision_casts does not keep it either (mended by #180575)",
)
#: In backward, silu is made of five operators in the traces of 2.9 and older, each of which rounds.
TAKES_NOTHING_APART = RELEASE >= (2, 11)
#: Operators that eager runs by cuDNN in fp16 use the native kernel in a trace. In bf16 eager does, too: the same bits.
NATIVE_BATCH_NORM = pytest.mark.xfail(
    strict=True,
    raises=AmpFailure,
    reason="no report found: traced, batch norm in fp16 is another kernel than in eager; the gradient of a bias in "
    "front of it, zero but for rounding, is off by 2.5 to 3.1 times its rounding, its own by 1.8 (H200, torch 2.11)",
)
_PACKED_ADDITION = pytest.mark.xfail(
    strict=True,
    raises=(AmpFailure, AssertionError),
    reason="triton-lang/triton#11581, pytorch/pytorch#193183: of a packed 16-bit addition ptxas (CUDA 13.0 and older) "
    "loses the constant where one half is not used; the gradients are 37 to 47 % off (H200, torch 2.11)",
)


def fused_pooling(target: Target) -> list[pytest.MarkDecorator]:
    """Return the marks of a case with batch norm, SiLU and average pooling behind each other, compiled by inductor.

    Inductor compiles their backward passes into one kernel, whose indices LLVM computes in 16 bits, two at a time. Such
    instructions exist from compute capability 9.0 on, and Triton 3.7 (torch 2.12) does not use them here.
    """
    if target.device.type != "cuda" or RELEASE >= (2, 12) or torch.version.hip is not None:
        return []
    packed = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    return [_PACKED_ADDITION] if packed else []


_EXPORTED = (
    "no report found: torch.export by Dynamo (strict=True, the default up to torch 2.6) loses the region around a "
    "float32 island; programs of newer releases raise when they are called"
)
EXPORTED = pytest.mark.xfail(RELEASE < (2, 7), strict=True, raises=(AmpFailure, AssertionError), reason=_EXPORTED)
STRICTLY_EXPORTED = pytest.mark.xfail(strict=True, raises=(AmpFailure, RuntimeError), reason=_EXPORTED)
REGION_OBJECTS = pytest.mark.xfail(
    strict=True,
    raises=AmpFailure,
    reason="pytorch/pytorch#194754: the guard is on a region's identity, not on its values",
)
