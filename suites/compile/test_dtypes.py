"""Traced operators are those of eager, in the same order and on the same dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, loss_of, zoo
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target
from pytest_amp.torch_private import Call, Traced, recorded_calls, tracing_backend

#: Operators whose dtypes matter; the remaining ones follow their dtypes.
_HEAVY = ("mm", "convolution", "attention", "softmax")
#: Functional forms have other names in traces, and fake kernels other dtypes of saved statistics: only inputs count.
_NORMS = ("batch_norm", "layer_norm")


def _cases(_target: Target) -> Iterator[object]:
    for case in zoo():
        if case.name in {"mlp", "cnn", "decoder", "decoder_softmax"}:
            yield pytest.param(case, id=case.name)


def _heavy(operators: Sequence[Call] | Sequence[Traced]) -> list[str]:
    """Return the heavy operators, each with the dtypes of its floating-point arguments."""
    heavy = []
    for operator in operators:
        name = operator.operator.removeprefix("aten::").partition(".")[0]
        argument_dtypes = (
            operator.dtypes
            if isinstance(operator, Traced)
            else [tensor.partition("[")[0] for tensor in operator.tensors]
        )
        dtypes = [dtype for dtype in argument_dtypes if "float" in dtype]
        norm = next((norm for norm in _NORMS if norm in name), None)
        if norm is not None:
            heavy.append(f"{norm}{'_backward' if 'backward' in name else ''}({dtypes[0]})")
        elif any(part in name for part in _HEAVY):
            heavy.append(f"{name}({', '.join(dtypes)})")
    return heavy


@pytest.mark.amp_parametrize("case", _cases)
def test_operators_take_the_dtypes_of_eager(amp: SuiteAmp, case: Case) -> None:
    """Forward has eager's order; backward, whose order is the engine's own, is compared as a multiset."""
    realised = case.realise(seed=amp.config.seed)
    device = amp.device.torch_device

    def step(function: Case) -> tuple[list[Call], list[Call]]:
        instance = realised.on(device)
        with recorded_calls() as forward, amp.autocast():
            loss = loss_of(function.loss(instance.model, instance.batch))
        with recorded_calls() as backward:
            loss.backward()
        return forward, backward

    eager = step(case)
    forward: list[Traced] = []
    backward: list[Traced] = []
    compiled = torch.compile(case.loss, backend=tracing_backend(forward, backward), fullgraph=True)
    instance = realised.on(device)
    with amp.autocast():
        loss = loss_of(compiled(instance.model, instance.batch))
    loss.backward()
    for phase, calls, traced, ordered in (
        ("forward", eager[0], forward, True),
        ("backward", eager[1], backward, False),
    ):
        expected, actual = _heavy(calls), _heavy(traced)
        assert expected, f"{case.name}: no operator was seen going {phase}"
        amp.observe(f"{case.name}/{phase}", [*sorted(set(actual))], kind="dtype")
        _expect_operators(amp, f"{case.name}, {phase}", actual, expected, ordered=ordered)


def _expect_operators(amp: SuiteAmp, what: str, actual: list[str], expected: list[str], *, ordered: bool) -> None:
    if not ordered:
        actual, expected = sorted(actual), sorted(expected)
    if actual == expected:
        return
    index = next((i for i, pair in enumerate(zip(actual, expected, strict=False)) if pair[0] != pair[1]), -1)
    raise AmpFailure(
        f"{what} on {amp.target.id}: compiled, operator {index} of {len(expected)} is not eager's",
        label_before="eager",
        before=expected[index] if index >= 0 else f"{len(expected)} operators",
        now=f"{actual[index] if index >= 0 else len(actual)}, on torch {torch.__version__}",
        likely="a cast is traced elsewhere than eager makes it, or an operator is taken apart before autocast sees it",
    )
