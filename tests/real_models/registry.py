"""Table of all real models."""

from __future__ import annotations

from tests.real_models import detection, generation, graphs, language, losses, pictures, sequences, speech
from tests.real_models.model import RealModel

MODELS: tuple[RealModel, ...] = (
    *language.MODELS,
    *speech.MODELS,
    *pictures.MODELS,
    *detection.MODELS,
    *generation.MODELS,
    *graphs.MODELS,
    *sequences.MODELS,
    *losses.MODELS,
)
