"""Tests of the project itself: ``pytest --amp-device=cpu`` in this folder."""

import torch


def test_gradients(amp, classifier):
    """Every gradient is as exact as its rounding allows."""
    amp.check_gradients(classifier)


def test_dtypes(amp, classifier):
    """Products are low, on every device."""
    amp.check_dtypes(classifier, {"0": amp.dtype, "3": amp.dtype})


def test_training(amp, classifier):
    """A short training stays where float32 goes, with a scaler where the dtype needs one."""
    amp.check_training(classifier, steps=10)


def test_parameters_stay_float32(amp, classifier):
    """Whatever the region does."""
    model = classifier.realise().on(amp.device.torch_device).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
