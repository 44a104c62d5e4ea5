"""Tests of the project itself: ``pytest --amp-device=cpu`` in this folder."""

import torch


def test_gradients(amp, classifier):
    """Check that every gradient is as exact as its rounding allows."""
    amp.check_gradients(classifier)


def test_dtypes(amp, classifier):
    """Check that products are low-precision, on every device."""
    amp.check_dtypes(classifier, {"0": amp.dtype, "3": amp.dtype})


def test_training(amp, classifier):
    """Check that a short training converges as float32 does, with a scaler if the dtype needs one."""
    amp.check_training(classifier, steps=10)


def test_parameters_stay_float32(amp, classifier):
    """Check that the region does not change the parameters' dtype."""
    model = classifier.realise().on(amp.device.torch_device).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
