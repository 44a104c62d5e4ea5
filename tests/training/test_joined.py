"""Rows of small tensors become few flat ones, in the same order and with the same values."""

from __future__ import annotations

import torch

from pytest_amp.training.joined import added, joined


def test_parts_have_all_rows_in_order() -> None:
    shapes = ((2, 3), (4,), (), (5, 1), (7,))
    first = [torch.full(shape, float(index)) for index, shape in enumerate(shapes)]
    second = [tensor + 0.5 for tensor in first]
    parts = [*joined(first, second, largest=8)]
    assert [part.tolist() for part, _ in parts] == [[0.0] * 6, [1.0] * 4 + [2.0], [3.0] * 5, [4.0] * 7]
    assert all(torch.equal(other, part + 0.5) for part, other in parts)


def test_tensor_above_the_limit_is_a_part_by_itself_and_is_not_copied() -> None:
    large = torch.arange(20.0).reshape(4, 5)
    parts = [part for (part,) in joined([torch.zeros(2), large, torch.ones(2)], largest=8)]
    assert [part.numel() for part in parts] == [2, 20, 2]
    assert parts[1].data_ptr() == large.data_ptr()


def test_devices_are_not_joined() -> None:
    rows = [torch.zeros(2), torch.zeros(2, device="meta"), torch.zeros(2, device="meta"), torch.zeros(2)]
    assert [(part.device.type, part.numel()) for (part,) in joined(rows)] == [("cpu", 2), ("meta", 4), ("cpu", 2)]


def test_nothing_is_joined_to_nothing() -> None:
    assert not [*joined()]
    assert not [*joined([], [])]


def test_statistics_of_several_devices_are_added_on_the_first_one() -> None:
    assert added([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]).tolist() == [4.0, 6.0]
    assert added([torch.zeros(2, device="meta"), torch.ones(2)]).device.type == "meta"
