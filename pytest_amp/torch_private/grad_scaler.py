"""GradScaler's private state between two updates: each optimizer's stage, and the result of its check for infs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_amp.torch_private.gone import PrivateApiGone

if TYPE_CHECKING:
    import torch


def optimizer_stage(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> str:
    """Return ``ready``, ``unscaled`` or ``stepped`` (``OptState``); ``ready`` also for an optimizer without an entry.

    Raises PrivateApiGone without ``GradScaler._per_optimizer_states`` and its ``stage``.
    """
    state = _states(scaler).get(id(optimizer))
    if state is None:
        return "ready"
    name = getattr(state.get("stage"), "name", None)
    if name is None:
        raise PrivateApiGone("the entry 'stage' of GradScaler._per_optimizer_states")
    return str(name).lower()


def found_infs(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> dict[str, bool]:
    """Return by device whether the optimizer's gradients had an inf or NaN; empty before the first check.

    Raises PrivateApiGone without ``GradScaler._per_optimizer_states`` and its ``found_inf_per_device``.
    """
    state = _states(scaler).get(id(optimizer))
    if state is None:
        return {}
    if "found_inf_per_device" not in state:
        raise PrivateApiGone("the entry 'found_inf_per_device' of GradScaler._per_optimizer_states")
    return {str(device): bool(found_inf) for device, found_inf in state["found_inf_per_device"].items()}


def scales_its_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the scaler leaves unscaling and skipping to the optimizer, a fused one that takes ``found_inf``.

    The flag is ``_step_supports_amp_scaling``; an optimizer without it is not fused.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _states(scaler: torch.amp.GradScaler) -> dict[int, dict[str, Any]]:
    if not scaler.is_enabled():
        return {}
    states: dict[int, dict[str, Any]] | None = getattr(scaler, "_per_optimizer_states", None)
    if states is None:
        raise PrivateApiGone("torch.amp.GradScaler._per_optimizer_states")
    return states
