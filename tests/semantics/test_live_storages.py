"""Memory that operators allocate is counted as long as it is alive; earlier memory is not."""

from __future__ import annotations

import torch

from pytest_amp.torch_private import live_storages


def test_what_is_held_is_counted_until_it_is_dropped() -> None:
    given = torch.ones(4)
    with live_storages() as held:
        made = given * 2
        assert held() == [16]
        view = made[:1]
        del made
        assert held() == [16]
        del view
        assert held() == []


def test_a_tensor_of_memory_that_was_given_is_not_new() -> None:
    """cuDNN's layers make a tensor of their weights' memory."""
    weight = torch.ones(4)
    with live_storages(given=[weight]) as held:
        flat = torch.empty(0).set_(weight.untyped_storage())
        assert flat.shape == (4,)
        assert held() == []
    with live_storages() as held:
        flat = torch.empty(0).set_(weight.untyped_storage())
        assert held() == [16], "without being told it takes that for new, which the first part would not notice"
