"""A case: made once, seeded, copied to a device and a dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, loss_of, map_tensors, mlp, named_tensors, zoo


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("case", zoo(), ids=lambda case: case.name)
def test_the_same_seed_makes_the_same_model_and_batch(case: Case) -> None:
    one, two, other = (case.realise(seed=seed) for seed in (1, 1, 2))
    states = [made.model.state_dict() for made in (one, two, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])
    batches = [dict(named_tensors(made.batch)) for made in (one, two, other)]
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[0])
    assert not torch.equal(batches[0]["inputs"], batches[2]["inputs"])


@pytest.mark.parametrize("case", zoo(), ids=lambda case: case.name)
def test_the_zoo_is_differentiable_everywhere(case: Case) -> None:
    made = case.realise(seed=0)
    torch.autograd.backward(loss_of(case.loss(made.model, made.batch)))
    assert all(p.grad is not None and bool(p.grad.any()) for p in made.model.parameters())


def test_names_in_the_zoo_are_unique() -> None:
    names = [case.name for case in zoo()]
    assert len(set(names)) == len(names)


def test_making_a_case_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    mlp().realise(seed=1)
    assert torch.equal(torch.rand(3), wanted)


def test_a_copy_shares_nothing_and_keeps_ties() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
            self.two.weight = self.one.weight

    case = Case("tied", Tied, lambda: torch.ones(1, requires_grad=True), lambda _model, batch: batch)
    made = case.realise()
    copy = made.on("cpu", torch.float64)
    assert copy.model.get_submodule("one").weight is copy.model.get_submodule("two").weight
    assert {p.dtype for p in copy.model.parameters()} == {torch.float64}
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}
    assert copy.batch.requires_grad
    assert copy.batch.is_leaf
    assert copy.batch.dtype == torch.float64
    same = made.on("cpu")
    assert same.batch is not made.batch
    assert same.batch.data_ptr() != made.batch.data_ptr()


def test_what_is_no_float_keeps_its_dtype() -> None:
    made = mlp().realise().on("cpu", torch.float64)
    assert made.batch["targets"].dtype == torch.int64
    assert made.batch["inputs"].dtype == torch.float64


def test_build_must_make_a_module() -> None:
    case = replace(mlp(), name="odd", build=lambda: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match=r"case odd: build made int, not a torch\.nn\.Module"):
        case.realise()


def test_nested_batches() -> None:
    x = torch.ones(2)
    tree: Any = {"a": [x, (x, "kept")], "b": Pair(x, None)}
    made = map_tensors(lambda tensor: tensor + 1, tree)
    assert isinstance(made["b"], Pair)
    assert made["a"][1][1] == "kept"
    assert [name for name, _ in named_tensors(made)] == ["a.0", "a.1.0", "b.left"]
    assert all(torch.equal(value, torch.full((2,), 2.0)) for _, value in named_tensors(made))
    assert list(named_tensors(x)) == [("", x)]


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [
        (torch.tensor(3.0), 3.0),
        (torch.tensor([3.0]), 3.0),
        ({"loss": torch.tensor(2.0), "logits": torch.ones(4)}, 2.0),
        ({"one": torch.tensor(2.0), "two": torch.tensor([1.0])}, 3.0),
    ],
)
def test_what_is_differentiated(outputs: Any, wanted: float) -> None:
    assert loss_of(outputs).sum().item() == wanted


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (torch.ones(2), r"the loss has shape \[2\], it must have one element"),
        ({"loss": torch.ones(2)}, r"the loss has shape \[2\]"),
        ({"one": torch.ones(2), "two": torch.ones(1)}, "outputs one, two: none is called loss"),
        ((torch.ones(1), torch.ones(1)), "the loss is tuple; valid: a tensor, or tensors by name"),
        ({"loss": None}, "outputs of dict without a tensor"),
    ],
)
def test_what_cannot_be_differentiated(outputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss_of(outputs)
