"""Groups of entries: each entry has one, whatever its name."""

from __future__ import annotations

import string

import pytest

from pytest_amp.fingerprint.data import load
from pytest_amp.fingerprint.groups import GROUPS, group_of


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("abs", "a-c"),
        ("__getitem__", "d-h"),
        ("H", "d-h"),
        ("T", "s-z"),
        ("torch.ops.aten._flash_attention_forward", "s-z"),
        ("2d_thing", "a-c"),
        ("linalg.pinv.singular", "linalg"),
        ("linalg", "i-m"),
        ("nn.functional.conv2d", "functional.a-f"),
        ("nn.Linear", "modules.l-s"),
        ("nn.Transformer", "modules.t-z"),
    ],
)
def test_group_follows_the_name(name: str, group: str) -> None:
    assert group_of(name) == group


def test_groups_cover_all_names_and_none_is_empty() -> None:
    letters = [f"{prefix}{letter}" for letter in string.ascii_letters for prefix in ("", "nn.", "nn.functional.", "_")]
    assert {group_of(name) for name in letters} <= set(GROUPS)
    assert {group_of(name) for name in load().known} == set(GROUPS)
