"""Memory that operators allocate is counted as long as it is alive; earlier memory is not."""

from __future__ import annotations

import torch

from pytest_amp.torch_private import live_storages


def test_storage_is_counted_until_it_is_released() -> None:
    tensor = torch.ones(4)
    with live_storages() as alive:
        result = tensor * 2
        assert alive() == [16]
        view = result[:1]
        del result
        assert alive() == [16]
        del view
        assert alive() == []


def test_tensor_of_an_existing_storage_is_not_counted() -> None:
    """cuDNN's layers create a tensor on the memory of their weights."""
    weight = torch.ones(4)
    with live_storages(given=[weight]) as alive:
        flat = torch.empty(0).set_(weight.untyped_storage())
        assert flat.shape == (4,)
        assert alive() == []
    with live_storages() as alive:
        flat = torch.empty(0).set_(weight.untyped_storage())
        assert alive() == [16], (
            "without ``given`` an existing storage counts as new, which the first part does not show"
        )
