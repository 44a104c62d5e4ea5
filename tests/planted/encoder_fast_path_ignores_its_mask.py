"""The fast path of TransformerEncoderLayer under autocast on a CPU attends to masked tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overriding import Overridden, override

MASK = 18


def _encoder(call: Overridden) -> Any:
    return replace(call, args=call.args[:MASK], kwargs={}).run()


override("_transformer_encoder_layer_fwd", _encoder)
