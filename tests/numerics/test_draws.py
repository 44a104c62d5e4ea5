"""Random numbers of the step in mixed precision: recorded once, and replayed in each step that it is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from pytest_amp import torch_private
from pytest_amp.cases import Case, Realised, seeded
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.draws import Draws, NotReplayed, draws
from pytest_amp.numerics.predicted import trace
from pytest_amp.numerics.realised import realise
from pytest_amp.precision import BF16, FP16
from tests.numerics.planted import broken
from tests.numerics.test_check_gradients import run

CONDITIONS = Conditions(find_device("cpu"), BF16)

pytestmark = pytest.mark.usefixtures("one_thread")


class Drawing(nn.Module):
    """Two linear layers with ``draw``, a function that draws random numbers, between them."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.draw = nn.Linear(16, 32), nn.Linear(32, 8), draw

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.draw(self.first(inputs))
        return self.second(hidden)  # type: ignore[no-any-return]


def case_of(draw: Callable[[Tensor], Tensor]) -> Case:
    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        return model(inputs).float().square().mean()  # type: ignore[no-any-return]

    return Case("drawing", lambda: Drawing(draw), lambda: torch.randn(24, 16), loss)


def _own_generator(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)


def _forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        x = f.dropout(x, 0.3)
    return x + torch.rand(32)


def _reseeded(x: Tensor) -> Tensor:
    """Apply dropout after seeding torch with a random number, as reversible layers do to repeat their masks."""
    torch.manual_seed(torch.seed() % 1000)
    return f.dropout(x, 0.3)


def _gumbel(x: Tensor) -> Tensor:
    return f.gumbel_softmax(x, dim=-1) * 4


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: f.dropout(x, 0.2),
    "native_dropout": lambda x: torch.native_dropout(x, 0.2, train=True)[0],
    "alpha_dropout": lambda x: f.alpha_dropout(x, 0.2, training=True),
    "dropout2d": lambda x: f.dropout2d(x[..., None, None], 0.2)[..., 0, 0],
    "stochastic depth": lambda x: x * x.new_empty(x.shape[0], 1).bernoulli_(0.8) / 0.8,
    "bernoulli": lambda x: x * torch.bernoulli(x.sigmoid()),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x + torch.randn(32),
    "uniform_": lambda x: x + torch.empty_like(x).uniform_(-1, 1),
    "normal_": lambda x: x + torch.empty(32).normal_(),
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(),
    "randperm": lambda x: x[:, torch.randperm(32)],
    "randint": lambda x: x * torch.randint(1, 4, (32,)),
    "multinomial": lambda x: x.gather(1, torch.multinomial(x.float().softmax(-1), 32)),
    "rrelu": lambda x: f.rrelu(x, training=True),
    "gumbel": _gumbel,
    "own generator": _own_generator,
    "fork_rng": _forked,
    "manual_seed": _reseeded,
    "checkpoint": lambda x: checkpoint(lambda y: f.dropout(y, 0.3), x, use_reentrant=False),
    "reentrant checkpoint": lambda x: checkpoint(lambda y: f.dropout(y, 0.3), x, use_reentrant=True),
    "Python's own": lambda x: x * random.uniform(1, 2),  # noqa: S311  # no secret
    "numpy": lambda x: x * float(np.random.default_rng(np.random.randint(9)).random()),  # noqa: NPY002  # as models do
}


@pytest.fixture
def dtype_dependent_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make float32 and float64 steps draw other values than the step in mixed precision, as kernels on CUDA do."""
    original_call, original_recorded = torch_private.Dispatched.__call__, Draws._recorded
    recording: list[bool] = []

    def drawn(call: torch_private.Dispatched) -> Any:
        if not recording and draws(call) and _is_float32(call):
            torch.rand(1)  # advances the generator
        return original_call(call)

    def recorded(self: Draws, *arguments: Any) -> Any:
        recording.append(True)
        try:
            return original_recorded(self, *arguments)
        finally:
            recording.pop()

    monkeypatch.setattr(torch_private.Dispatched, "__call__", drawn)
    monkeypatch.setattr(Draws, "_recorded", recorded)


def _is_float32(call: torch_private.Dispatched) -> bool:
    leaves = torch_private.flat((call.args, call.kwargs))[0]
    return any(isinstance(leaf, Tensor) and leaf.dtype in (torch.float32, torch.float64) for leaf in leaves)


@pytest.mark.usefixtures("dtype_dependent_draws")
@pytest.mark.parametrize("form", FORMS)
def test_steps_replay_the_draws_of_mixed_precision(form: str) -> None:
    values = run(case_of(FORMS[form]))
    assert values["drawing/summary.equal"] == 1.0
    assert values["drawing/summary.distance"] == 0.0


@pytest.mark.usefixtures("dtype_dependent_draws")
def test_check_fails_if_no_draw_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the fixture: without replay, the draws that depend on the dtype make the check fail."""
    monkeypatch.setattr(Draws, "find", lambda *_: None)
    with pytest.raises(AmpFailure):
        run(case_of(FORMS["dropout"]))


def test_recurrent_dropout_is_replayed() -> None:
    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        return model(inputs)[0].float().square().mean()  # type: ignore[no-any-return]

    case = Case("layers", lambda: nn.GRU(16, 16, 2, dropout=0.3), lambda: torch.randn(5, 4, 16), loss)
    assert run(case)["layers/summary.equal"] == 1.0


def test_dropout_that_scales_wrongly_in_low_precision_fails() -> None:
    """The step under test is the one that is recorded: its own kernel runs, and no replay hides a fault of it."""

    def scaled(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return original(*args, **kwargs) * 1.02

    with pytest.raises(AmpFailure, match=r"differs from manual casts|has an error of"):
        run(case_of(FORMS["dropout"]), device=broken("dropout", scaled))


def test_draw_that_was_not_recorded_is_named_and_not_checked() -> None:
    """A model that draws only in float32: the step in mixed precision has no random numbers to replay there."""

    def noise(x: Tensor) -> Tensor:
        result = f.dropout(x, 0.1)
        return result + torch.randn(32) if x.dtype == torch.float32 else result

    with pytest.warns(NotReplayed, match=r"aten::randn draws other random numbers in another dtype"):
        values = run(case_of(noise))
    assert "aten::randn" in values["drawing/summary.not_replayed"]


def test_unrecorded_draws_of_hidden_code_are_not_checked() -> None:
    """Compiled code draws without being observed by a dispatch mode, but it advances the generator."""

    def hidden(x: Tensor) -> Tensor:
        with torch._C._DisableTorchDispatch():
            mask = torch.rand(32) > 0.3 if x.dtype == torch.bfloat16 else torch.ones(32) > 0
        return f.dropout(x, 0.1) * mask

    with pytest.warns(NotReplayed):
        values = run(case_of(hidden))
    assert values["drawing/summary.not_replayed"]


def test_notes_name_operators_without_their_fused_kernel() -> None:
    unfused = Draws(apart=frozenset({"aten::_scaled_dot_product_flash_attention"}))
    (note,) = unfused.notes()
    assert note.startswith("aten::_scaled_dot_product_flash_attention: computed without its fused kernel")
    unreplayed = Draws(not_replayed={"aten::_cudnn_rnn"})
    assert unreplayed.notes() == ("not replayed: aten::_cudnn_rnn",)
    assert unreplayed.explanation == "aten::_cudnn_rnn draws random numbers that another step cannot be given"
    assert str(trace(case_of(FORMS["dropout"]), CONDITIONS)).count("not replayed") == 0


def test_case_has_a_recording_only_if_it_draws() -> None:
    assert realise(case_of(torch.relu), CONDITIONS).draws is None
    realised = realise(case_of(FORMS["dropout"]), CONDITIONS)
    assert isinstance(realised, Realised)
    assert isinstance(realised.draws, Draws)
    assert len(realised.draws.recorded) == 1


def test_seeded_block_repeats_python_numpy_and_torch_numbers() -> None:
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  # the global state is the subject
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    with seeded(1):
        first = random.random(), float(np.random.rand()), torch.rand(1).item(), torch.seed()  # noqa: NPY002, S311
    with seeded(1):
        again = random.random(), float(np.random.rand()), torch.rand(1).item(), torch.seed()  # noqa: NPY002, S311
    assert first == again
    assert torch.seed() != torch.seed()
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002


def test_draws_in_fp16_are_replayed() -> None:
    values = run(case_of(FORMS["dropout"]), precision=FP16)
    assert values["drawing/summary.equal"] == 1.0
