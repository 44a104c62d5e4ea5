"""Outputs, gradients and buffers: mixed precision against float32 and float64."""

from pytest_amp.families import Family

FAMILY = Family("gradients")
