"""The dtypes of modules' outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.cases import Case, decoder, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.dtypes import Expected, check_dtypes
from pytest_amp.precision import BF16
from tests.observing import Noted

CPU = Conditions(find_device("cpu"), BF16)


def run(case: Case, expected: Mapping[str, Expected]) -> dict[str, str]:
    observed = Noted()
    check_dtypes(case, CPU, expected, observed.observe)
    return observed


def test_dtypes_are_checked_by_path_and_for_the_model() -> None:
    expected = {"blocks.1.norm2": torch.float32, "head": torch.bfloat16, "": torch.bfloat16}
    assert run(decoder(), expected) == {
        "decoder/blocks.1.norm2.dtype": "float32",
        "decoder/head.dtype": "bfloat16",
        "decoder/model.dtype": "bfloat16",
    }


def test_different_dtype_is_red_and_names_all_modules() -> None:
    with pytest.raises(AmpFailure) as raised:
        run(mlp(), {"0": torch.bfloat16, "3": torch.float32, "5": torch.float32})
    assert str(raised.value).splitlines()[0] == (
        "AmpFailure: mlp: 3 (LayerNorm) returned bfloat16 under autocast(cpu, bfloat16), it should return float32; "
        "also wrong: 5 bfloat16 for float32"
    )


def test_later_patterns_and_exact_paths_take_precedence() -> None:
    """Later patterns precede earlier ones, a path precedes both; a list of modules, which never runs, is left out."""
    low, wide = torch.bfloat16, torch.float32
    patterns = {"blocks*": wide, "blocks.?.attention.*": low, "blocks.*.up": low, "blocks.*n": low}
    observed = run(decoder(), {"": low, **patterns})
    assert observed["decoder/blocks.1.norm2.dtype"] == "float32"
    assert observed["decoder/blocks.0.attention.qkv.dtype"] == observed["decoder/blocks.0.down.dtype"] == "bfloat16"
    assert observed["decoder/model.dtype"] == "bfloat16"
    assert "decoder/blocks.dtype" not in observed
    with pytest.raises(AmpFailure, match=r"blocks\.0\.norm1 \(LayerNorm\) returned float32"):
        run(decoder(), {"blocks*.down": low, "*norm?": low})
    with pytest.raises(ValueError, match=r"of 1 modules named 'block\?' none returned a floating tensor"):
        run(decoder(), {"block?": wide})
    with pytest.raises(ValueError, match=r"decoder has no module 'layers\.\*'; it has embedding"):
        run(decoder(), {"layers.*": wide})


def test_unknown_path_is_refused() -> None:
    with pytest.raises(ValueError, match="mlp has no module '7'; it has 0, 1, 2, 3, 4, 5"):
        run(mlp(), {"7": torch.float32})


def test_module_that_does_not_run_is_red() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.left = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    case = Case("skips", Skips, lambda: torch.ones(1, 2), lambda model, x: model(x).float().sum())
    with pytest.raises(AmpFailure, match=r"left \(Linear\) returned no floating tensor"):
        run(case, {"left": torch.bfloat16})


def test_all_returned_tensors_are_checked() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return x, {"low": x @ x, "index": torch.ones(1, dtype=torch.int64)}

    def build() -> nn.Module:
        return nn.ModuleDict({"both": Both(), "last": nn.Linear(2, 2)})

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = model.get_submodule("both")(x)[0]
        return model.get_submodule("last")(wide).float().sum()  # type: ignore[no-any-return]

    case = Case("both", build, lambda: torch.ones(2, 2), loss)
    with pytest.raises(AmpFailure, match="returned float32 and bfloat16"):
        run(case, {"both": torch.float32})


@dataclass
class Record:
    """Loss, logits, states, and a winner, as libraries return them."""

    loss: Tensor
    logits: Tensor
    states: tuple[Tensor, ...]
    winner: Tensor
    cache: None = None


class Named(NamedTuple):
    """The same values as a named tuple."""

    loss: Tensor
    logits: Tensor
    states: tuple[Tensor, ...]
    winner: Tensor


#: Containers of a module's loss, logits, states and winner.
FORMS: dict[str, Callable[..., Any]] = {
    "dict": lambda *of: dict(zip(("loss", "logits", "states", "winner"), of, strict=True)),
    "dataclass": Record,
    "named tuple": Named,
    "tuple": lambda *of: of,
    "list": lambda *of: [*of],
}


class Several(nn.Module):
    """Linear layer, and several outputs computed from its result."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(8, 4), form

    def forward(self, x: Tensor) -> Any:
        """Return a float32 loss, low-precision logits, states of both dtypes, and the index of the largest logit."""
        logits = self.linear(x)
        return self.form(logits.float().square().mean(), logits, (logits.float(), logits), logits.argmax())


def several(form: str) -> Case:
    def loss(model: nn.Module, x: Tensor) -> Any:
        outputs = model(x)
        if isinstance(outputs, Record):
            return outputs.loss
        return outputs["loss"] if isinstance(outputs, dict) else outputs[0]

    return Case("several", lambda: Several(FORMS[form]), lambda: torch.randn(2, 8), loss)


LOW, WIDE = torch.bfloat16, torch.float32


def places(form: str, **expected: torch.dtype) -> dict[str | int, torch.dtype]:
    """Return expectations by name, or by number if a module returns no names; ``_`` stands for a dot."""
    order = ["loss", "logits", "states", "winner"]
    numbered = form in ("tuple", "list")

    def place(name: str) -> str | int:
        head, _, rest = name.partition("_")
        first: str | int = order.index(head) if numbered else head
        return f"{first}.{rest}" if rest else first

    return {place(name): dtype for name, dtype in expected.items()}


@pytest.mark.parametrize("form", FORMS)
def test_each_output_is_compared_with_its_own_dtype(form: str) -> None:
    stated = {"": places(form, loss=WIDE, logits=LOW, states_0=WIDE, states_1=LOW)}
    observed = run(several(form), stated)
    assert [*observed.values()] == ["float32", "bfloat16", "float32", "bfloat16"]
    assert f"several/model[{'0' if form in ('tuple', 'list') else 'loss'}].dtype" in observed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "wrong", "actual"),
    [
        ("loss", LOW, "float32"),
        ("logits", WIDE, "bfloat16"),
        ("states_1", WIDE, "bfloat16"),
        ("states", LOW, "float32"),
    ],
)
def test_different_dtype_of_one_output_is_named(form: str, name: str, wrong: torch.dtype, actual: str) -> None:
    place = str(*places(form, **{name: wrong})) + (".0" if name == "states" else "")
    with pytest.raises(AmpFailure, match=rf"output {place} of the model \(Several\) is {actual} under .*should be"):
        run(several(form), {"": places(form, **{name: wrong}), "linear": LOW})


def test_exact_output_paths_precede_patterns() -> None:
    """An exact path precedes patterns and its container; integer outputs have no dtype to state."""
    observed = run(several("dict"), {"": {"*": WIDE, "states": WIDE, "states.1": LOW, "logits": LOW}})
    assert len(observed) == 4
    assert run(several("dict"), {"*": {"loss": WIDE}}) == {"several/model[loss].dtype": "float32"}


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"": {"logit": LOW}}, "several: the model returns no tensor 'logit'; it returns loss, logits, states.0, *"),
        ({"": {0: LOW}}, "several: the model returns no tensor 0; it returns loss, *"),
        ({"": {"winner": LOW}}, "several: output winner of the model is int64; expected floating tensors"),
        ({"linear": {"loss": LOW}}, "several: linear returns no tensor 'loss'; it returns one tensor, which has no *"),
        ({"": {}}, "'' has no outputs in check_dtypes; expected a dtype, or dtypes by output"),
        ({"": {None: LOW}}, "None names no output of ''; expected its name, 'loss', or its number, 0"),
        ({"": {True: LOW}}, "True names no output of ''; expected its name, 'loss', or its number, 0"),
        (
            {"": {"loss": "fp32"}},
            "'fp32' is not a dtype; expected torch.float32, amp.dtype and the like, or dtypes by *",
        ),
        (
            {"": (LOW, WIDE)},
            "(torch.bfloat16, torch.float32) is not a dtype; expected *, of a tuple {0: torch.float32}",
        ),
        ({"li*": {"loss": LOW}}, "several: of 1 modules named 'li*' none returned one of loss"),
    ],
)
def test_invalid_output_expectations_are_refused(expected: Any, says: str) -> None:
    with pytest.raises(AmpUsageError) as raised:
        run(several("dict"), expected)
    assert "\n" not in str(raised.value)
    assert fnmatchcase(str(raised.value).replace("[", "("), says.replace("[", "(")), str(raised.value)


def test_complex_outputs_are_compared_with_complex_dtypes() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.fft.rfft(x), x

    case = Case(
        "spectrum",
        lambda: nn.Sequential(nn.Linear(8, 8), Spectrum()),
        lambda: torch.randn(2, 8),
        lambda model, x: model.get_submodule("1")(x + model.get_submodule("0")(x))[0].abs().sum(),
    )
    assert run(case, {"1": torch.complex64}) == {"spectrum/1.dtype": "complex64"}
    assert run(case, {"1": {0: torch.complex64, 1: WIDE}}).keys() == {"spectrum/1[0].dtype", "spectrum/1[1].dtype"}
    with pytest.raises(AmpFailure, match="returned complex64"):
        run(case, {"1": torch.complex128})


def test_submodule_named_model_is_distinct_from_the_model() -> None:
    """Modules of transformers have such a submodule."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).float()  # type: ignore[no-any-return]

    case = Case("whole", Whole, lambda: torch.ones(1, 4), lambda model, x: model(x).sum())
    expected = {"whole/the model.dtype": "float32", "whole/model.dtype": "bfloat16"}
    assert run(case, {"": WIDE, "model": LOW}) == expected
