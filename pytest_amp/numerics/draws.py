"""Record the random numbers of a training step, and replay them in the steps that it is compared with.

A CUDA kernel draws vectors whose width depends on the dtype and the shape, so the same seed gives different random
numbers in float64, float32, bf16 and fp16 (aten/src/ATen/native/cuda/Dropout.cu, DistributionTemplates.h). A comparison
of two steps measures rounding only if both use the same random numbers: those of the step in mixed precision.

A recorded draw is looked up by the state of the generators before it, and its replay sets them to the state after it.
Recomputation by a checkpoint, and code inside ``torch.random.fork_rng``, therefore get the numbers drawn originally.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from pytest_amp import torch_private

#: Key of a draw: the signature of the call and the states of its generators.
_Key: TypeAlias = tuple[object, ...]

#: Operators that return no mask, and their argument for the dropout probability: they draw only if it is not zero.
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
#: Operators that select or prepare a kernel; they return no random numbers.
_SILENT = frozenset({"aten::_fused_sdp_choice", "aten::_cudnn_init_dropout_state"})


def draws(call: torch_private.Dispatched) -> bool:
    """Return whether the result of a call depends on torch's generators."""
    name = call.overload.name()
    if not torch_private.is_random(call.overload) or name in _SILENT:
        return False
    if name in MASKLESS:
        return bool(_arguments(call).get(MASKLESS[name]))
    if name.startswith("aten::rrelu_with_noise"):
        return bool(_arguments(call).get("training"))
    return not name.startswith("aten::native_dropout") or _arguments(call).get("train") is not False


def _arguments(call: torch_private.Dispatched) -> dict[str, Any]:
    names = torch_private.arguments_of(call.overload)
    return {**torch_private.defaults_of(call.overload), **dict(zip(names, call.args, strict=False)), **call.kwargs}


class NotReplayed(UserWarning):
    """Warning that a model's random numbers cannot be replayed: its values are not compared with float64."""


@dataclass(frozen=True)
class Draw:
    """Random numbers of one call, and the states of its generators after it.

    ``values`` are the random tensors of the call: its mask or noise if it has one, else its results. ``dtype`` is the
    dtype of its first result.
    """

    values: tuple[torch.Tensor, ...]
    after: tuple[torch.Tensor, ...]
    dtype: torch.dtype


def _is_same(draw: Draw, other: Draw) -> bool:
    """Return whether two draws have the same values, regardless of dtype, and leave the same generator states."""
    pairs = zip((*draw.values, *draw.after), (*other.values, *other.after), strict=True)
    return all(torch.equal(a.to(torch.complex128), b.to(torch.complex128)) for a, b in pairs)


@dataclass
class Draws:
    """Draws of one step of a case.

    ``apart`` are the operators without a mask that ``scope`` replaces in every step of the case. ``not_replayed`` are
    the remaining operators without a mask, whose random numbers cannot be replayed. ``unknown`` are operators that draw
    in a later step but not in the recorded one. ``end`` are the states of the default generators after the recorded
    step, by device type; ``ended_elsewhere`` is whether a step without a recorder left them in a different state.
    ``problem`` is the error that prevented the recording.
    """

    apart: frozenset[str] = frozenset()
    recorded: dict[_Key, Draw] = field(default_factory=dict)
    not_replayed: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    end: dict[str, bytes] = field(default_factory=dict)
    problem: str | None = None
    ended_elsewhere: bool = False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record each draw inside the block."""
        with torch_private.each_call(self._recorded):
            yield

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Replace operators that draw without a mask by operators that return one, so that they can be replayed.

        If the case uses dropout in them, attention runs by its formula, and recurrent layers run without cuDNN.
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
        """Replay the recorded numbers of each draw inside the block, in the draw's dtype."""
        if not self.recorded:
            yield
            return
        with torch_private.each_call(self._replayed):
            yield

    def same_as(self, other: Draws) -> bool:
        """Return whether two steps drew the same random numbers in the same order, from the same generator states."""
        if self.not_replayed or other.not_replayed or [*self.recorded] != [*other.recorded]:
            return False
        pairs = zip(self.recorded.values(), other.recorded.values(), strict=True)
        return all(_is_same(draw, same) for draw, same in pairs)

    def find(self, call: torch_private.Dispatched) -> Draw | None:
        """Return the recorded draw of a call, and advance its generators; remember a call that has no recorded draw."""
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
        call = torch_private.Dispatched(overload, args, kwargs)
        if not draws(call):
            return call()
        if overload.name() in MASKLESS:
            self.not_replayed.add(overload.name())
            return call()
        key = _key(call, _generators(call))
        noise = _unrounded_noise(call)
        result = call()
        draw = _draw(call, result)
        if noise is not None and _has_drawn(draw.values[0], noise):
            draw = replace(draw, values=(noise,))
        self.recorded[key] = draw
        return result

    def _replayed(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = torch_private.Dispatched(overload, args, kwargs)
        states = [generator.get() for generator in _generators(call)] if draws(call) else []
        draw = self.find(call)
        if draw is None:
            return call()
        after = [generator.get() for generator in _generators(call)]
        for generator, state in zip(_generators(call), states, strict=True):
            generator.set(state)
        inputs = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args] if is_computed(call) else []
        result = call()
        for generator, state in zip(_generators(call), after, strict=True):
            generator.set(state)
        targets = _drawn(call, result)
        first = torch_private.flat(result)[0][0]
        if first.dtype == draw.dtype and all(map(_has_drawn, targets, draw.values)):
            return result  # bitwise equal to the kernel's own result
        for target, value in zip(targets, draw.values, strict=True):
            target.copy_(value)
        if inputs:
            first.copy_(dependent(call, draw, inputs))
        return result

    def finish(self, device: torch.device) -> None:
        """Store the states of the default generators after the recorded step."""
        self.end = _states(device)

    def compare_end(self, device: torch.device) -> None:
        """Set ``ended_elsewhere`` if a step without a recorder left the default generators in different states."""
        self.ended_elsewhere |= bool(self.end) and _states(device) != self.end

    @property
    def matter(self) -> bool:
        """Return whether the case draws any random numbers, recorded or not."""
        return bool(self.recorded or self.not_replayed or self.apart or self.problem)

    def notes(self) -> tuple[str, ...]:
        """Return a trace's notes on the random numbers of a case."""
        operators = ", ".join(sorted(self.apart - self.not_replayed))
        apart = f"{operators}: computed without its fused kernel, which returns no mask of what it drops"
        return (*([apart] if operators else []), *(f"not replayed: {name}" for name in sorted(self.not_replayed)))

    @property
    def explanation(self) -> str | None:
        """Text for a failure about the random numbers that differ between steps; None if all of them are replayed."""
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
    """Make a call, and return its draw."""
    return _draw(call, call())


def _draw(call: torch_private.Dispatched, result: Any) -> Draw:
    values = tuple(value.detach().clone() for value in _drawn(call, result))
    after = tuple(generator.get() for generator in _generators(call))
    return Draw(values, after, torch_private.flat(result)[0][0].dtype)


def _has_drawn(target: torch.Tensor, value: torch.Tensor) -> bool:
    return torch.equal(target, value.to(target.dtype))


def _unrounded_noise(call: torch_private.Dispatched) -> torch.Tensor | None:
    """Return the noise that ``rrelu`` draws for a float32 input; None for other operators.

    On a CPU the kernel multiplies by float32 noise, but returns rounded noise: aten/src/ATen/native/Activation.cpp.
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
    """Return the tensors of a call that contain its random numbers, without results that are computed from them."""
    written = written_by(call)
    results = [value for value in torch_private.flat(result)[0] if isinstance(value, torch.Tensor)]
    return written or (results[1:] if is_computed(call) else results)


def written_by(call: torch_private.Dispatched) -> list[torch.Tensor]:
    """Return the arguments to which a call writes its random numbers."""
    if call.overload.name() in _LEAKY:
        return [call.args[1]]
    arguments = _arguments(call)
    return [arguments[name] for name in torch_private.written_arguments(call.overload)]


#: Leaky ReLUs that write their noise to an argument.
_LEAKY = frozenset({"aten::rrelu_with_noise", "aten::rrelu_with_noise_"})


def is_computed(call: torch_private.Dispatched) -> bool:
    """Return whether the first result of a call is computed from its input and its random numbers."""
    name = call.overload.name()
    return name in _LEAKY or name in {"aten::native_dropout", "aten::rrelu_with_noise_functional"}


def dependent(call: torch_private.Dispatched, draw: Draw, inputs: Sequence[Any]) -> torch.Tensor:
    """Compute the first result of dropout or of a random leaky ReLU from its ``inputs`` and recorded numbers.

    Dropout multiplies by 1 / (1 - p) with a float32 p on CUDA: fused_dropout_kernel in
    aten/src/ATen/native/cuda/Dropout.cu; masked_scale_kernel there, the gradient of dropout, does the same
    arithmetic. On a CPU it rounds once: native_dropout_cpu in aten/src/ATen/native/Dropout.cpp. A leaky ReLU
    multiplies by its noise: aten/src/ATen/native/Activation.cpp.
    """
    if call.overload.name().startswith("aten::rrelu_with_noise"):
        return (inputs[0] * draw.values[0]).to(inputs[0].dtype)  # type: ignore[no-any-return]
    x, share, mask = inputs[0], float(inputs[1]), draw.values[0]
    if share >= 1:
        return torch.zeros_like(x)
    if x.device.type == "cpu" or x.dtype == torch.float64:
        return x.mul(mask).mul_(1 / (1 - share))  # type: ignore[no-any-return]
    scale = float(torch.tensor(1 - share, dtype=torch.float32))
    scaled: torch.Tensor = torch.ops.aten.native_dropout_backward(x, mask, 1 / scale)
    return scaled


@dataclass(frozen=True)
class _Generator:
    """Getter and setter of one generator's state."""

    get: Callable[[], torch.Tensor]
    set: Callable[[torch.Tensor], object]


def _generators(call: torch_private.Dispatched) -> list[_Generator]:
    """Return the generators of a call: the one among its arguments, or the defaults of the CPU and of its device."""
    leaves = call.flat[0]
    generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
    if generators:
        return [_Generator(generators[0].get_state, generators[0].set_state)]
    places = [leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)]
    places += [torch.device(leaf) for leaf in leaves if isinstance(leaf, torch.device)]
    return _defaults(next((place for place in places if place.type != "cpu"), torch.device("cpu")))


def _defaults(device: torch.device) -> list[_Generator]:
    generators = [_Generator(torch.get_rng_state, torch.set_rng_state)]
    if device.type not in ("cpu", "meta"):
        module: Any = torch.get_device_module(device)
        place = device if device.index is not None else torch.device(device.type, module.current_device())
        generators.append(
            _Generator(lambda: module.get_rng_state(place), lambda state: module.set_rng_state(state, place))
        )
    return generators


def _states(device: torch.device) -> dict[str, bytes]:
    names = ("cpu", device.type)
    return {name: _bytes(generator.get()) for name, generator in zip(names, _defaults(device), strict=False)}


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(state.tolist())


def _key(call: torch_private.Dispatched, generators: list[_Generator]) -> _Key:
    """Return the key of a draw, which does not depend on dtypes or dropout probabilities."""
    leaves = call.flat[0]
    shape = tuple(
        tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
        if isinstance(leaf, (torch.Tensor, int)) and not isinstance(leaf, bool)
    )
    return call.overload.name(), shape, *(_bytes(generator.get()) for generator in generators)
