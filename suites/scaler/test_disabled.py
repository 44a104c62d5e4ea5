"""A disabled scaler is the identity: a training loop can keep its calls."""

from __future__ import annotations

import pickle

import pytest
import torch

from pytest_amp.amp import SuiteAmp

from .training import INF, ScalerFactory, expected_gradient, training


def test_scale_returns_the_same_object(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    scaler = amp_scaler(enabled=False)
    loss = torch.ones((), device=amp.device.torch_device)
    several = [loss, loss]
    assert scaler.scale(loss) is loss
    assert scaler.scale(several) is several
    assert not scaler.is_enabled()
    assert scaler.get_scale() == 1.0


def test_an_iteration_is_the_plain_one(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Gradients are not scaled and not unscaled, and the step is the optimizer's."""
    run = training(amp, amp_scaler(enabled=False))
    run.backward()
    assert torch.equal(run.gradient, expected_gradient(run.parameter))
    run.scaler.unscale_(run.optimizer)
    assert torch.equal(run.gradient, expected_gradient(run.parameter))
    run.scaler.step(run.optimizer)
    run.scaler.update()
    assert torch.equal(run.parameter, 1 - expected_gradient(run.parameter) / 2)


def test_it_checks_nothing(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The optimizer steps on inf gradients, as without a scaler; every order of calls is allowed; closures work."""
    run = training(amp, amp_scaler(enabled=False))
    run.backward(INF)
    for _ in range(2):
        run.scaler.unscale_(run.optimizer)
    assert run.scaler.step(run.optimizer, closure=lambda: 2.5) == 2.5
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.scaler.update(4.0)
    assert run.parameter[1].isinf().all()
    assert run.scaler.get_scale() == 1.0


def test_its_state_is_empty(amp_scaler: ScalerFactory) -> None:
    """Loading is a no-op; pickling keeps it disabled."""
    scaler = amp_scaler(enabled=False)
    assert scaler.state_dict() == {}
    scaler.load_state_dict({})
    scaler.load_state_dict(amp_scaler(init_scale=8.0).state_dict())
    assert scaler.state_dict() == {}
    assert not pickle.loads(pickle.dumps(scaler)).is_enabled()  # noqa: S301  # pickled just now


@pytest.mark.amp(devices=["cpu"])
def test_without_cuda_a_cuda_scaler_disables_itself(amp: SuiteAmp) -> None:  # noqa: ARG001  # it runs with the family
    """Without CUDA it warns; with CUDA it is enabled."""
    if torch.cuda.is_available():
        assert torch.amp.GradScaler("cuda").is_enabled()
    else:
        with pytest.warns(UserWarning, match="CUDA is not available"):
            scaler = torch.amp.GradScaler("cuda")
        assert not scaler.is_enabled()
