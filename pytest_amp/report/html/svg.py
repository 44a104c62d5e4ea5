"""Shapes of SVG as text; the page colours them, so that light and dark mode share one plot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Scale:
    """Linear map from ``low`` … ``high`` to ``start`` … ``end`` pixels; values beyond are clamped."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel position with one digit."""
        width = self.high - self.low
        share = (value - self.low) / width if width else 0.0
        if math.isnan(share):  # numbers too large to subtract or divide as floats
            share = 0.0
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round numbers between the ends: steps of 1, 2 or 5 times a power of ten."""
        width = self.high - self.low
        if not width > 0 or not math.isfinite(width):
            return [self.low]
        step = 10.0 ** math.floor(math.log10(width / about))
        step *= next(factor for factor in (1, 2, 5, 10) if width / (step * factor) <= about)
        first = math.ceil(self.low / step)
        return [round(step * n, 12) for n in range(first, math.floor(self.high / step) + 1)]


def text(x: float, y: float, content: str, *, anchor: str = "start", kind: str = "label") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a filled rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{max(width, 0):g}" height="{height:g}" rx="2" class="{kind}"/>'


def dot(x: float, y: float, radius: float, kind: str) -> str:
    """Return a filled circle."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{kind}"/>'


def group(tip: str, *shapes: str) -> str:
    """Return shapes with a tooltip."""
    return f"<g><title>{escape(tip)}</title>{''.join(shapes)}</g>"


def drawing(width: float, height: float, label: str, *shapes: str) -> str:
    """Return the whole drawing; ``label`` describes it for screen readers."""
    size = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px"'
    return f'<svg role="img" aria-label="{escape(label, quote=True)}" {size}>{"".join(shapes)}</svg>'


def shortened(name: str, most: int) -> str:
    """Return a name of at most ``most`` characters, cut in the middle: its end is more informative."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most - most // 2) :]}"
