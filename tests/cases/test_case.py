"""Cases: built once, seeded, copied to a device and a dtype."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, Realised, loss_of, map_tensors, mlp, named_tensors, outputs_by_name, zoo
from pytest_amp.failure import AmpUsageError


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("case", zoo(), ids=lambda case: case.name)
def test_seed_determines_model_and_batch(case: Case) -> None:
    one, two, other = (case.realise(seed=seed) for seed in (1, 1, 2))
    states = [result.model.state_dict() for result in (one, two, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])
    batches = [dict(named_tensors(result.batch)) for result in (one, two, other)]
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[0])
    assert not torch.equal(batches[0]["inputs"], batches[2]["inputs"])


@pytest.mark.parametrize("case", zoo(), ids=lambda case: case.name)
def test_parameters_of_the_zoo_all_get_gradients(case: Case) -> None:
    result = case.realise(seed=0)
    torch.autograd.backward(loss_of(case.loss(result.model, result.batch)))
    assert all(p.grad is not None and bool(p.grad.any()) for p in result.model.parameters())


def test_names_in_the_zoo_are_unique() -> None:
    names = [case.name for case in zoo()]
    assert len(set(names)) == len(names)


def test_realise_restores_the_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    mlp().realise(seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_copy_shares_no_storage_and_preserves_ties() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
            self.two.weight = self.one.weight

    case = Case("tied", Tied, lambda: torch.ones(1, requires_grad=True), lambda _model, batch: batch)
    result = case.realise()
    copy = result.on("cpu", torch.float64)
    assert copy.model.get_submodule("one").weight is copy.model.get_submodule("two").weight
    assert {p.dtype for p in copy.model.parameters()} == {torch.float64}
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert copy.batch.requires_grad
    assert copy.batch.is_leaf
    assert copy.batch.dtype == torch.float64
    same = result.on("cpu")
    assert same.batch is not result.batch
    assert same.batch.data_ptr() != result.batch.data_ptr()


def test_copy_has_separate_dicts() -> None:
    shared: dict[str, Any] = {}
    with_metadata: OrderedDict[str, Any] = OrderedDict()
    with_metadata.version = 2  # type: ignore[attr-defined]  # as the result of state_dict has

    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        for layer in model:
            layer.cache = shared  # type: ignore[assignment]  # any object
        model.names = with_metadata  # type: ignore[assignment]
        return model

    realised = Case("dicts", build, lambda: torch.ones(2), lambda model, x: model(x).sum()).realise()
    copied: Any = realised.on("cpu").model
    copied[0].register_forward_hook(lambda *_: None)
    copied[0].cache["key"] = 1
    assert not realised.model[0]._forward_hooks  # type: ignore[index]  # a sequence of layers
    assert (shared, copied[1].cache) == ({}, {"key": 1})
    assert copied.names.version == 2


def test_copy_preserves_integer_dtypes() -> None:
    result = mlp().realise().on("cpu", torch.float64)
    assert result.batch["targets"].dtype == torch.int64
    assert result.batch["inputs"].dtype == torch.float64


def test_build_without_a_module_is_refused() -> None:
    case = replace(mlp(), name="odd", build=lambda: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match=r"case odd: build made int, not a torch\.nn\.Module"):
        case.realise()


def test_map_tensors_preserves_nested_batches() -> None:
    x = torch.ones(2)
    tree: Any = {"a": [x, (x, "kept")], "b": Pair(x, None)}
    result = map_tensors(lambda tensor: tensor + 1, tree)
    assert isinstance(result["b"], Pair)
    assert result["a"][1][1] == "kept"
    assert [name for name, _ in named_tensors(result)] == ["a.0", "a.1.0", "b.left"]
    assert all(torch.equal(value, torch.full((2,), 2.0)) for _, value in named_tensors(result))
    assert list(named_tensors(x)) == [("", x)]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (torch.tensor(3.0), 3.0),
        (torch.tensor([3.0]), 3.0),
        ({"loss": torch.tensor(2.0), "logits": torch.ones(4)}, 2.0),
        ({"one": torch.tensor(2.0), "two": torch.tensor([1.0])}, 3.0),
    ],
)
def test_loss_of_returns_the_sum_or_the_named_loss(outputs: Any, expected: float) -> None:
    assert loss_of(outputs).sum().item() == expected


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (torch.ones(2), r"the loss has shape \[2\], it must have one element"),
        ({"loss": torch.ones(2)}, r"the loss has shape \[2\]"),
        ({"one": torch.ones(2), "two": torch.ones(1)}, "outputs one, two: none is called loss"),
        ((torch.ones(1), torch.ones(1)), "the loss is tuple; expected a tensor, or tensors by name"),
        ({"loss": None}, "outputs of dict without a tensor"),
    ],
)
def test_loss_of_refuses_other_outputs(outputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss_of(outputs)


class Attributed(UserDict[str, Any]):
    """Mapping with attributes, as tokenizers return it."""

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # missing while it is copied
            raise AttributeError(name)
        return self.data[name]


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda x: Attributed(x=x), lambda batch: batch.x),
        (lambda x: OrderedDict(x=x), lambda batch: batch["x"]),
        (lambda x: defaultdict(list, x=x), lambda batch: batch["x"]),
        (lambda x: MappingProxyType({"x": x}), lambda batch: batch["x"]),
        (lambda x: SimpleNamespace(x=x, rest=3, deeper={"y": x + 1}), lambda batch: batch.x),
        (lambda x: deque([x]), lambda batch: batch[0]),
    ],
    ids=["user", "ordered", "default", "proxy", "namespace", "deque"],
)
def test_map_tensors_preserves_container_classes(make: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
    leaf = torch.ones(2, requires_grad=True)
    batch = make(leaf)
    copied = map_tensors(lambda x: x.detach().double(), batch)
    assert isinstance(copied, type(batch)) or isinstance(batch, MappingProxyType)
    assert (read(copied).dtype, read(batch) is leaf) == (torch.float64, True)
    assert [x.dtype for _, x in named_tensors(copied)] == [torch.float64] * len([*named_tensors(batch)])


def test_outputs_by_name_omits_objects() -> None:
    """Omit outputs that are objects, such as a cache of keys."""
    outputs = {"loss": torch.ones(()), "cache": SimpleNamespace(keys=torch.ones(2)), "more": [torch.zeros(1)]}
    assert list(outputs_by_name(outputs)) == ["loss", "more.0"]


def test_lengths_of_packed_sequences_stay_on_the_cpu() -> None:
    """torch refuses them on other devices."""
    sequences = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 4, 2), torch.tensor([1, 4, 2]), enforce_sorted=False)
    moved = map_tensors(lambda x: x.to("meta"), sequences)
    assert (moved.data.is_meta, moved.sorted_indices.is_meta, moved.batch_sizes.is_meta) == (True, True, False)


@pytest.mark.parametrize(
    "make",
    [lambda: iter([torch.ones(1)]), lambda: (x for x in (1,)), lambda: {torch.ones(1)}],
    ids=["iterator", "generator", "set"],
)
def test_batch_that_can_be_read_once_is_refused(make: Callable[[], Any]) -> None:
    case = Case("once", lambda: nn.Linear(1, 1), make, lambda model, batch: model(next(iter(batch))))
    with pytest.raises(
        AmpUsageError, match=r"case once: batch made a \w+, which gives its tensors once, or in any order"
    ):
        case.realise()


def test_model_on_the_meta_device_is_refused() -> None:
    case = Case("meta", lambda: nn.Linear(1, 1, device="meta"), lambda: torch.ones(1, 1), lambda model, x: model(x))
    with pytest.raises(AmpUsageError, match="case meta: build made weight on the meta device, where it has no data"):
        case.realise()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_model_that_cannot_be_copied_is_built_again() -> None:
    """Use torch's older weight_norm, which stores a computed tensor that cannot be copied."""
    case = Case("normed", lambda: nn.utils.weight_norm(nn.Linear(3, 2)), lambda: torch.ones(1, 3), lambda m, x: m(x))
    result = case.realise(seed=3)
    with torch.no_grad():
        dict(result.model.named_parameters())["weight_g"].mul_(2)
    drawn = torch.get_rng_state()
    copied = result.on("cpu", torch.float64)
    assert torch.equal(torch.get_rng_state(), drawn)
    (loss, exact) = (case.loss(instance.model, instance.batch).double() for instance in (result, copied))
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-6)
    assert copied.model.weight_g is not result.model.weight_g

    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise NotImplementedError("no copies")

    with pytest.raises(NotImplementedError, match="no copies"):
        Realised(Stubborn(1, 1), torch.ones(1, 1)).on("cpu")
