"""Wider zoo: one small case of each kind of network, loss and training that users bring."""

from __future__ import annotations

from pytest_amp.cases import language, training, vision
from pytest_amp.cases.case import Case


def wider_zoo() -> tuple[Case, ...]:
    """Return the cases that ``zoo`` lacks, in a fixed order; the docstring of each names what it guards."""
    return (
        vision.residual(),
        vision.unet(),
        vision.patches(),
        vision.sampling(),
        language.encoder(),
        language.gated_decoder(),
        language.checkpointed(),
        language.experts(),
        language.bags(),
        language.adapters(),
        language.weight_normed(),
        language.attention_by_math(),
        language.attention_by_flash(),
        language.attention_by_efficient(),
        language.attention_by_cudnn(),
        language.attention_by_einsum(),
        training.gru(),
        *training.losses(),
        training.ctc(),
        training.accumulated(),
    )
