"""DDP's communication hooks over iterations: each sends its own dtype, and results are float32, nearly exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_collectives

from .expectations import settings
from .hooks import dtypes_of_state, registered
from .models import SIZE, Tensors, gradients, mean
from .programs import low_dtype, on_cpu, sent
from .ranks_ddp import wrapped

WIDTH, OUTPUTS, ITERATIONS = 32, 16, 4


def known(number: int) -> Tensors:
    """Return a row of powers of two, shared by all ranks, and the rank's factors: their products are low-precision.

    A gradient is therefore a matrix of rank one, without rounding; the sum over ranks has rank one, too, but no low
    dtype represents it.
    """
    row = 2.0 ** (torch.arange(WIDTH) % 7 - 3)
    steps = torch.tensor([(5 + column, 77 - 3 * column)[number] for column in range(OUTPUTS)])
    factors = (1 + steps / 128) * (-1.0) ** torch.arange(OUTPUTS)
    return {"row": row, "factors": factors * (1.0, 2.0**-6)[number]}


def iterate(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce the same gradient in each iteration: results, calls, and the hook's state, its whole error included."""
    torch.manual_seed(settings["seed"])
    model = nn.Linear(WIDTH, OUTPUTS, bias=False).to(rank.device)
    parallel = wrapped(model, rank, {})
    state, hook = registered(settings["hook"])
    parallel.register_comm_hook(state, hook)
    mine = {name: value.to(rank.device) for name, value in known(rank.number).items()}
    arrived, errors, calls_of = [], [], []
    for _ in range(ITERATIONS):
        parallel.zero_grad()
        with recorded_collectives() as calls:
            with rank.autocast(low_dtype(settings)):
                outputs = parallel(mine["row"].unsqueeze(0))
            torch.autograd.backward((outputs * mine["factors"]).float().sum())
        arrived.append(on_cpu(gradients(parallel))["weight"])
        calls_of.append(sent(calls))
        errors.append({name: value.cpu().clone() for name, value in getattr(state, "error_dict", {}).items()})
    return {"gradients": arrived, "sent": calls_of, "kept": dtypes_of_state(state), "errors": errors}


@dataclass(frozen=True)
class _Hook:
    """Dtype that a hook sends, and the largest distance of its gradients from the mean, in roundings of that dtype.

    0 requires equal bits, for values that are halved in that dtype and added.
    """

    sends: torch.dtype
    most: float = 0.0


_HOOKS = {
    "all-reduce": _Hook(torch.float32),
    "fp16 around all-reduce": _Hook(torch.float16),
    "bf16 around all-reduce": _Hook(torch.bfloat16),
    # Products with two vectors of length one, after two sums: a few roundings.
    "PowerSGD": _Hook(torch.float32, 8.0),
    "fp16 around PowerSGD": _Hook(torch.float16, 8.0),
    "bf16 around PowerSGD": _Hook(torch.bfloat16, 8.0),
}


def _answers(amp: SuiteAmp, ranks: RankGroup, hook: str) -> list[dict[str, Any]]:
    if "PowerSGD" in hook and amp.device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("PowerSGD of tensors on a CPU fails where there is a GPU: it waits for their device")
    return ranks.ask(iterate, settings(amp, hook=hook))


def _parts() -> list[dict[str, torch.Tensor]]:
    """Return the gradient of each rank: an outer product of low-precision values, which is a low-precision value."""
    known_parts = [known(number) for number in range(SIZE)]
    return [{"weight": torch.outer(part["factors"], part["row"])} for part in known_parts]


@pytest.mark.parametrize("hook", _HOOKS)
def test_a_known_gradient_arrives(amp: SuiteAmp, ranks: RankGroup, hook: str) -> None:
    """Compare each iteration with the mean of both ranks, no low-precision value: within the rounding of messages.

    The gradients have rank one, so that PowerSGD loses nothing.
    """
    rule = _HOOKS[hook]
    exact = mean(_parts(), rule.sends if not rule.most else torch.float32)["weight"]
    assert not torch.equal(exact.to(amp.dtype).float(), exact) or rule.sends is not torch.float32
    limit = rule.most * torch.finfo(rule.sends).eps / 2
    for number, answer in enumerate(_answers(amp, ranks, hook)):
        for iteration, gradient in enumerate(answer["gradients"]):
            error = float((gradient.double() - exact.double()).norm() / exact.double().norm())
            if gradient.dtype is not torch.float32 or error > limit:
                raise AmpFailure(
                    f"the hook {hook}: gradients of iteration {iteration} are not the mean on rank {number} of "
                    f"{amp.target.id}",
                    label_before="rule",
                    before=f"float32, with an error of at most {limit:.3g}",
                    now=f"{dtype_name(gradient.dtype)}, error {error:.3g}",
                    likely="the hook sends or computes in a lower dtype, does not divide, or does not cast back",
                )
        dtypes = {dtype for calls in answer["sent"] for _, *call in calls for dtype in call}
        assert dtypes == {dtype_name(rule.sends)}, f"the hook {hook} sends {sorted(dtypes)}"


def test_powersgd_keeps_what_it_leaves_out(amp: SuiteAmp, ranks: RankGroup) -> None:
    """The retained error is the gradient minus the result, bit for bit in float32, and joins the next gradient."""
    for number, answer in enumerate(_answers(amp, ranks, "PowerSGD")):
        assert set(answer["kept"].values()) == {"float32"}, f"PowerSGD keeps {answer['kept']}"
        left = torch.zeros_like(_parts()[number]["weight"])
        for iteration in (2, 3):
            whole = _parts()[number]["weight"] + left
            left = whole - answer["gradients"][iteration]
            (error,) = answer["errors"][iteration].values()
            assert torch.equal(error.view_as(left), left), f"the retained error of iteration {iteration} differs"


def test_local_sgd_stops_sending(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Two iterations are reduced in float32; then each rank keeps its own gradient, and nothing is sent."""
    for number, answer in enumerate(_answers(amp, ranks, "local SGD")):
        local = _parts()[number]["weight"]
        expected = [mean(_parts())["weight"]] * 2 + [local] * 2
        assert all(torch.equal(gradient, exact) for gradient, exact in zip(answer["gradients"], expected, strict=True))
        assert [bool(calls) for calls in answer["sent"]] == [True, True, False, False]
        assert {dtype for calls in answer["sent"] for _, *call in calls for dtype in call} == {"float32"}


def test_batched_powersgd_arrives(amp: SuiteAmp, ranks: RankGroup) -> None:
    """One matrix of all gradients arrives in float32, and the error of the compression is retained."""
    for answer in _answers(amp, ranks, "batched PowerSGD"):
        assert {gradient.dtype for gradient in answer["gradients"]} == {torch.float32}
        assert set(answer["kept"].values()) == {"float32"}
