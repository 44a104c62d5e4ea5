"""Record the random numbers of a training step, and replay them in the steps that it is compared with.

A CUDA kernel draws random numbers in vectors whose width depends on the dtype and the shape, so the same seed gives
different numbers in float64, float32, bf16 and fp16 (aten/src/ATen/native/cuda/Dropout.cu, DistributionTemplates.h).
Two steps differ by rounding errors alone only if both use the same random numbers: those of the step in mixed
precision.

A draw is recorded under the generator states before its call, and its replay sets the generators to the states after
it. Code that restores an earlier generator state, such as activation checkpointing and ``torch.random.fork_rng``,
therefore gets the numbers that were recorded for that state.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.drawn_decisions import DrawnDecisions

#: Key of a draw: its operator, the shapes and integers of its arguments, and the states of its generators.
_Key: TypeAlias = tuple[object, ...]

#: Operators with fused dropout, which return no mask -> argument with its probability; they draw unless it is zero.
MASKLESS = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "dropout_p",
    "aten::_scaled_dot_product_flash_attention": "dropout_p",
    "aten::_scaled_dot_product_efficient_attention": "dropout_p",
    "aten::_scaled_dot_product_efficient_attention_backward": "dropout_p",
    "aten::_scaled_dot_product_cudnn_attention": "dropout_p",
    "aten::_scaled_dot_product_cudnn_attention_backward": "dropout_p",
    "aten::_scaled_dot_product_fused_attention_overrideable": "dropout_p",
    "aten::_flash_attention_forward": "dropout_p",
    "aten::_efficient_attention_forward": "dropout_p",
    "aten::_cudnn_attention_forward": "dropout_p",
    "aten::_cudnn_attention_backward": "dropout_p",
    "aten::_cudnn_rnn": "dropout",
    "aten::miopen_rnn": "dropout",
}
_RECURRENT = frozenset({"aten::_cudnn_rnn", "aten::miopen_rnn"})
#: Operators tagged as random that return no random numbers: they select a kernel, or prepare cuDNN's dropout.
_SILENT = frozenset({"aten::_fused_sdp_choice", "aten::_cudnn_init_dropout_state"})


def draws(call: torch_private.Dispatched) -> bool:
    """Return whether the result of a call depends on random numbers of torch's generators."""
    name = call.overload.name()
    if not torch_private.is_random(call.overload) or name in _SILENT:
        return False
    if name in MASKLESS:
        return bool(_arguments(call).get(MASKLESS[name]))
    if name.startswith("aten::rrelu_with_noise"):
        return bool(_arguments(call).get("training"))
    return not name.startswith("aten::native_dropout") or _arguments(call).get("train") is not False


def _arguments(call: torch_private.Dispatched) -> dict[str, Any]:
    """Return the arguments of a call by name, including defaults."""
    names = torch_private.arguments_of(call.overload)
    return {**torch_private.defaults_of(call.overload), **dict(zip(names, call.args, strict=False)), **call.kwargs}


class NotReplayed(UserWarning):
    """Warning that a model draws random numbers that cannot be replayed, so it is not compared with float64."""


@dataclass(frozen=True)
class Draw:
    """Random numbers of one call.

    ``values`` are its mask or noise if the operator returns one, else its results. ``after`` are the states of its
    generators after the call. ``dtype`` is the dtype of its first result. ``key`` is that of ``_key``.
    """

    values: tuple[torch.Tensor, ...]
    after: tuple[torch.Tensor, ...]
    dtype: torch.dtype
    key: _Key = ()


def _is_same(draw: Draw, other: Draw) -> bool:
    """Return whether two draws have the same values, regardless of dtype, and leave the same generator states."""
    pairs = zip((*draw.values, *draw.after), (*other.values, *other.after), strict=True)
    return all(torch.equal(a.to(torch.complex128), b.to(torch.complex128)) for a, b in pairs)


@dataclass
class Draws:
    """Draws of one step of a case.

    ``apart`` are the operators with fused dropout (MASKLESS) that ``scope`` disables in every step of the case.
    ``not_replayed`` are those that run although they cannot be replayed. ``unknown`` are operators that draw in a later
    step, but have no recorded draw. ``decisions`` are those that the step takes from its random numbers alone. ``end``
    are the states of the default generators after the recorded step, by device type. ``ended_elsewhere`` is whether the
    same step left them in different states when it ran without the recorder: it then draws numbers that the recorder
    does not see. ``problem`` is the error that prevented the recording.
    """

    apart: frozenset[str] = frozenset()
    recorded: dict[_Key, Draw] = field(default_factory=dict)
    not_replayed: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    end: dict[str, bytes] = field(default_factory=dict)
    problem: str | None = None
    ended_elsewhere: bool = False
    decisions: DrawnDecisions = field(default_factory=DrawnDecisions)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record each draw inside the block, except those of operators in MASKLESS."""
        with torch_private.each_call(self._recorded):
            yield

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Disable the fused kernels of the operators in ``apart``: the remaining ones return a mask to replay.

        Attention then uses the math backend of SDPA, and recurrent layers run without cuDNN.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with contextlib.ExitStack() as stack:
            if self.apart - _RECURRENT:
                stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
            if self.apart & _RECURRENT:
                stack.enter_context(torch_private.cudnn_enabled(enabled=False))
            yield

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Replace the random numbers of each draw inside the block by the recorded ones, in the dtype of the call."""
        if not self.recorded:
            yield
            return
        with torch_private.each_call(self._replayed):
            yield

    def same_as(self, other: Draws) -> bool:
        """Return whether two steps drew the same numbers in the same order, and took the same decisions from them."""
        if self.not_replayed or other.not_replayed or [*self.recorded] != [*other.recorded]:
            return False
        if not self.decisions.are_equal(other.decisions):
            return False
        pairs = zip(self.recorded.values(), other.recorded.values(), strict=True)
        return all(_is_same(draw, other_draw) for draw, other_draw in pairs)

    def find(self, call: torch_private.Dispatched) -> Draw | None:
        """Return the recorded draw of a call and advance its generators; add a call without one to ``unknown``."""
        if not self.recorded or not draws(call):
            return None
        generators = _generators(call)
        draw = self.recorded.get(_key(call, generators))
        if draw is None:
            self.unknown.append(call.overload.name())
            return None
        for generator, state in zip(generators, draw.after, strict=True):
            generator.set(state)
        return draw

    def _recorded(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch_private.is_random(overload):
            result = torch_private.call_overload(overload, args, kwargs)
            self.decisions.record(overload, args, kwargs, result)
            return result
        call = torch_private.Dispatched(overload, args, kwargs)
        self.decisions.forget_written(overload, args, kwargs)
        if not draws(call):
            return call()
        if overload.name() in MASKLESS:
            self.not_replayed.add(overload.name())
            return call()
        key = _key(call, _generators(call))
        noise = _unrounded_noise(call)
        result = call()
        draw = replace(_draw(call, result), key=key)
        if noise is not None and _equals_rounded(draw.values[0], noise):
            draw = replace(draw, values=(noise,))
        self.recorded[key] = draw
        self.follow(call, draw, result)
        return result

    def follow(self, call: torch_private.Dispatched, draw: Draw, result: Any) -> None:
        """Follow the decisions that the step takes from the result of a call that drew ``draw``."""
        if not is_computed(call):
            self.decisions.follow_draw(draw.key, _drawn(call, result))

    def _replayed(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch_private.is_random(overload):
            result = torch_private.call_overload(overload, args, kwargs)
            self.decisions.replay(overload, args, kwargs, result)
            return result
        call = torch_private.Dispatched(overload, args, kwargs)
        self.decisions.forget_written(overload, args, kwargs)
        states_before = [generator.get() for generator in _generators(call)] if draws(call) else []
        draw = self.find(call)
        if draw is None:
            return call()
        states_after = [generator.get() for generator in _generators(call)]
        for generator, state in zip(_generators(call), states_before, strict=True):
            generator.set(state)
        inputs = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args] if is_computed(call) else []
        result = call()
        for generator, state in zip(_generators(call), states_after, strict=True):
            generator.set(state)
        self.follow(call, draw, result)
        targets = _drawn(call, result)
        first = torch_private.flat(result)[0][0]
        if first.dtype == draw.dtype and all(map(_equals_rounded, targets, draw.values)):
            # The call drew the recorded numbers itself. ``dependent`` might round differently from its kernel.
            return result
        for target, value in zip(targets, draw.values, strict=True):
            target.copy_(value)
        if inputs:
            first.copy_(dependent(call, draw, inputs))
        return result

    def finish(self, device: torch.device) -> None:
        """Store the states of the default generators after the recorded step."""
        self.end = _states(device)

    def compare_end(self, device: torch.device) -> None:
        """Set ``ended_elsewhere`` if a step without the recorder left the default generators in different states."""
        self.ended_elsewhere |= bool(self.end) and _states(device) != self.end

    @property
    def are_drawn(self) -> bool:
        """Return whether the case draws random numbers, whether or not they were recorded."""
        return bool(self.recorded or self.not_replayed or self.apart or self.problem)

    def notes(self) -> tuple[str, ...]:
        """Return the notes of a trace: disabled fused kernels, and operators that are not replayed."""
        operators = ", ".join(sorted(self.apart - self.not_replayed))
        apart = f"{operators}: computed without its fused kernel, which returns no mask of what it drops"
        return (*([apart] if operators else []), *(f"not replayed: {name}" for name in sorted(self.not_replayed)))

    @property
    def explanation(self) -> str | None:
        """Reason why random numbers differ between steps, for the message of a failure; None if all are replayed."""
        if self.not_replayed:
            return f"{', '.join(sorted(self.not_replayed))} draws random numbers that another step cannot be given"
        if self.problem:
            return f"random numbers of this model could not be recorded ({self.problem})"
        if self.ended_elsewhere:
            return "it draws random numbers in compiled code, or in a kernel of its own, which cannot be recorded"
        if self.unknown:
            return f"{self.unknown[0]} draws other random numbers in another dtype: the recorded step did not draw them"
        return None


def draw_of(call: torch_private.Dispatched) -> Draw:
    """Run a call, and return the random numbers that it drew."""
    return _draw(call, call())


def _draw(call: torch_private.Dispatched, result: Any) -> Draw:
    values = tuple(value.detach().clone() for value in _drawn(call, result))
    after = tuple(generator.get() for generator in _generators(call))
    return Draw(values, after, torch_private.flat(result)[0][0].dtype)


def _equals_rounded(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether ``tensor`` is bitwise ``value`` rounded to its dtype."""
    return torch.equal(tensor, value.to(tensor.dtype))


def _unrounded_noise(call: torch_private.Dispatched) -> torch.Tensor | None:
    """Return the noise that ``rrelu`` draws for a float32 input; None for other operators.

    The CPU kernel multiplies by float32 noise, but returns it rounded to the dtype of the input:
    aten/src/ATen/native/Activation.cpp.
    """
    if not call.overload.name().startswith("aten::rrelu_with_noise"):
        return None
    generators = _generators(call)
    states = [generator.get() for generator in generators]
    x: torch.Tensor = call.args[0].to(torch.float32, copy=True)
    noise: torch.Tensor = call.args[1].to(torch.float32, copy=True)
    torch.ops.aten.rrelu_with_noise(x, noise, *call.args[2:], **call.kwargs)
    for generator, state in zip(generators, states, strict=True):
        generator.set(state)
    return noise


def _drawn(call: torch_private.Dispatched, result: Any) -> list[torch.Tensor]:
    """Return the tensors that contain the random numbers of a call: written arguments, the mask, or the results."""
    written = written_by(call)
    results = [value for value in torch_private.flat(result)[0] if isinstance(value, torch.Tensor)]
    return written or (results[1:] if is_computed(call) else results)


def written_by(call: torch_private.Dispatched) -> list[torch.Tensor]:
    """Return the arguments to which a call writes its random numbers."""
    if call.overload.name() in _LEAKY:
        return [call.args[1]]
    arguments = _arguments(call)
    return [arguments[name] for name in torch_private.written_arguments(call.overload)]


#: Randomized leaky ReLU (rrelu), which writes its noise to an argument.
_LEAKY = frozenset({"aten::rrelu_with_noise", "aten::rrelu_with_noise_"})


def is_computed(call: torch_private.Dispatched) -> bool:
    """Return whether the first result of a call is computed from its input and its random numbers."""
    name = call.overload.name()
    return name in _LEAKY or name in {"aten::native_dropout", "aten::rrelu_with_noise_functional"}


def dependent(call: torch_private.Dispatched, draw: Draw, inputs: Sequence[Any]) -> torch.Tensor:
    """Recompute the first result of dropout or of rrelu from ``inputs`` and the recorded mask or noise.

    On CUDA dropout multiplies by 1 / (1 - p), with 1 - p in float32 (fused_dropout_kernel in
    aten/src/ATen/native/cuda/Dropout.cu). Its backward kernel (masked_scale_kernel in that file) does the same
    arithmetic, and takes the mask as an argument, so it is called here. On a CPU dropout rounds once:
    native_dropout_cpu in aten/src/ATen/native/Dropout.cpp. rrelu multiplies by its noise:
    aten/src/ATen/native/Activation.cpp.
    """
    if call.overload.name().startswith("aten::rrelu_with_noise"):
        return (inputs[0] * draw.values[0]).to(inputs[0].dtype)  # type: ignore[no-any-return]
    x, probability, mask = inputs[0], float(inputs[1]), draw.values[0]
    if probability >= 1:
        return torch.zeros_like(x)
    if x.device.type == "cpu" or x.dtype == torch.float64:
        return x.mul(mask).mul_(1 / (1 - probability))  # type: ignore[no-any-return]
    scale = float(torch.tensor(1 - probability, dtype=torch.float32))
    scaled: torch.Tensor = torch.ops.aten.native_dropout_backward(x, mask, 1 / scale)
    return scaled


@dataclass(frozen=True)
class _Generator:
    """Getter and setter of one generator's state."""

    get: Callable[[], torch.Tensor]
    set: Callable[[torch.Tensor], object]


def _generators(call: torch_private.Dispatched) -> list[_Generator]:
    """Return the generator among the arguments of a call, else the default generators of the CPU and of its device."""
    leaves = call.flat[0]
    generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
    if generators:
        return [_Generator(generators[0].get_state, generators[0].set_state)]
    devices = [leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)]
    devices += [torch.device(leaf) for leaf in leaves if isinstance(leaf, torch.device)]
    return _defaults(next((device for device in devices if device.type != "cpu"), torch.device("cpu")))


def _defaults(device: torch.device) -> list[_Generator]:
    """Return the default generators of the CPU and, for an accelerator, of ``device``."""
    generators = [_Generator(torch.get_rng_state, torch.set_rng_state)]
    if device.type not in ("cpu", "meta"):
        module: Any = torch.get_device_module(device)
        indexed = device if device.index is not None else torch.device(device.type, module.current_device())
        generators.append(
            _Generator(lambda: module.get_rng_state(indexed), lambda state: module.set_rng_state(state, indexed))
        )
    return generators


def _states(device: torch.device) -> dict[str, bytes]:
    """Return the states of the default generators by device type."""
    names = ("cpu", device.type)
    return {name: _bytes(generator.get()) for name, generator in zip(names, _defaults(device), strict=False)}


def _bytes(state: torch.Tensor) -> bytes:
    """Return the bytes of a generator's state, a contiguous tensor of uint8 on the CPU; numpy may be missing."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _key(call: torch_private.Dispatched, generators: list[_Generator]) -> _Key:
    """Return the key of a draw. It contains neither dtypes nor floats, such as a dropout probability."""
    leaves = call.flat[0]
    shapes_and_integers = tuple(
        tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
        if isinstance(leaf, (torch.Tensor, int)) and not isinstance(leaf, bool)
    )
    return call.overload.name(), shapes_and_integers, *(_bytes(generator.get()) for generator in generators)
