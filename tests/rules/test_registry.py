"""Registered operators, compared with those of other releases."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.record import Kind, Observation, Verdict, compare
from pytest_amp.rules.registry import read_registry, without_rule


def test_operator_with_a_rule_in_another_release_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """rms_norm was added in torch 2.4, and has a rule on CUDA since 2.12."""
    here = [name for name in read_registry("cuda").registered if name != "aten::rms_norm"]
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    assert "aten::rms_norm" in without_rule(read_registry("cuda", registered=here))
    assert "aten::rms_norm" not in without_rule(read_registry("cuda", registered=[*here, "aten::rms_norm"]))
    assert without_rule(read_registry("a device without data", registered=here)) == ()


def test_added_rule_is_a_change() -> None:
    before, now = (Observation("rules/fake-cuda/bf16/aten::rms_norm", Kind.RULE, rule) for rule in ("none", "fp32"))
    assert compare(now, before).verdict is Verdict.CHANGED
