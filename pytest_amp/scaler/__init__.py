"""What GradScaler does, as a model in plain Python that the real one is held against."""

from pytest_amp.scaler.reference import Gradients, ReferenceScaler, Refused, Stage, UpdateRule, float32

__all__ = ["Gradients", "ReferenceScaler", "Refused", "Stage", "UpdateRule", "float32"]
