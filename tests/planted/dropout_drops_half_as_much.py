"""Dropout under autocast drops with half the probability that it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overriding import Overridden, override


def _dropout(call: Overridden) -> Any:
    x, p, train = call.args
    return replace(call, args=(x, p / 2, train)).run()


override("dropout", _dropout)
