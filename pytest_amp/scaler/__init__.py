"""What GradScaler does, as a model in plain Python, and random programs that hold the real one against it."""

from pytest_amp.scaler.reference import Gradients, ReferenceScaler, Refused, Stage, UpdateRule, float16, float32

__all__ = ["Gradients", "ReferenceScaler", "Refused", "Stage", "UpdateRule", "float16", "float32"]
