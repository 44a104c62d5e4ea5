"""Inputs that reveal a conversion that does not round to nearest even: ties, and the numbers next to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_amp.formats.format import Doubles, Format


@dataclass(frozen=True)
class Neighbours:
    """float32 numbers around every tie of a format, with both signs: ``ties``, and the float32 next to each.

    The last tie is half a step above the largest finite number. A tie that float32 cannot represent, such as one below
    its smallest number, is left out.
    """

    ties: Doubles
    below: Doubles
    above: Doubles

    def named(self) -> dict[str, Doubles]:
        """Return the inputs by the name of their kind."""
        return {"ties": self.ties, "just below ties": self.below, "just above ties": self.above}


def neighbours(form: Format) -> Neighbours:
    """Return the ties of a format narrower than float32, and the float32 numbers next to them."""
    patterns = np.arange(1 << (form.bits - 1), dtype=np.int64)
    values = form.decode(patterns)
    values = values[np.isfinite(values)]
    ties = np.append((values[:-1] + values[1:]) / 2, form.overflows_at)
    narrow = ties.astype(np.float32)
    narrow = narrow[narrow.astype(np.float64) == ties]
    down, up = np.nextafter(narrow, np.float32(0)), np.nextafter(narrow, np.float32(np.inf))
    return Neighbours(*(_both_signs(values) for values in (narrow, down, up)))


def _both_signs(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Doubles:
    wide = values.astype(np.float64)
    return np.concatenate([wide, -wide])
