"""Grammar of keys, by which the same fact has the same key in every run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_amp.record import make_key
from pytest_amp.record.observation import check_key


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (("rules", "cuda", "bf16", "aten::softmax.int"), "rules/cuda/bf16/aten::softmax.int"),
        (("rules", "fake-xpu", "fp16", "mm"), "rules/fake-xpu/fp16/mm"),
        (("project", "cpu", "fp32", "a/b/c d"), "project/cpu/fp32/a/b/c d"),
        (("speed", "cuda", "tf32", "λ"), "speed/cuda/tf32/λ"),
        (("a_1", "b2", "bf16", "/"), "a_1/b2/bf16//"),
    ],
)
def test_valid_parts_make_a_key(parts: tuple[str, str, str, str], key: str) -> None:
    assert make_key(*parts) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "rules",
        "rules/cuda/bf16",
        "rules/cuda/bf16/",
        "/cuda/bf16/x",
        "Rules/cuda/bf16/x",
        "1rules/cuda/bf16/x",
        "rules/cuda:1/bf16/x",
        "rules/fake:cuda/bf16/x",
        "rules/CUDA/bf16/x",
        "rules/cuda/bfloat16/x",
        "rules/cuda/torch.bfloat16/x",
        "rules/cuda/bf16/ x",
        "rules/cuda/bf16/x ",
        "rules/cuda/bf16/x\n",
        "rules/cuda/bf16/x\ny",
        "rules/cuda/bf16/x\ty",
        "rules/cuda/bf16/\x00",
        "rules/cuda/bf16/a\x7fb",
        "rules/cuda/bf16/a\u2028b",
        "rules/cuda/bf16/\ud800",
    ],
)
def test_invalid_key_is_refused_in_one_line(key: str) -> None:
    with pytest.raises(ValueError, match="is not an observation key; expected family/device/dtype/name") as error:
        check_key(key)
    assert len(str(error.value).splitlines()) == 1


@settings(derandomize=True, deadline=None)
@given(st.text())
def test_key_is_one_printable_line_or_refused(name: str) -> None:
    try:
        key = make_key("rules", "cpu", "bf16", name)
    except ValueError:
        return
    assert key.isprintable()
    assert key.split("/", 3) == ["rules", "cpu", "bf16", name]
    assert name == name.strip()
