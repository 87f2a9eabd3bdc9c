"""What operations cost at each of several sizes, and how fast that grows: its slope.

The slope is the exponent s of cost ~ size ** s, by least squares over the logarithms. Where part of
a cost is the same at every size, that hides the rest at small sizes: so the slope between the two
largest is told too.
"""

from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np

# 1.6 times the cost at 10,000 times the size.
_FLAT_MAX = 0.05
_LINEAR = (0.9, 1.1)


@dataclass(frozen=True, slots=True)
class Curve:
    """Medians of one operation."""

    operation: str
    sizes: tuple[int, ...]
    ms: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The exponent over all sizes."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.ms), 1)[0])

    @property
    def last_slope(self) -> float:
        """The exponent between the two largest sizes."""
        return log(self.ms[-1] / self.ms[-2]) / log(self.sizes[-1] / self.sizes[-2])

    @property
    def growth(self) -> float:
        """The last by the first."""
        return self.ms[-1] / self.ms[0]

    @property
    def named_slope(self) -> str:
        """The slope with the word for it, and the one at the largest sizes."""
        # Without the sign of a zero.
        shown, last = round(self.slope, 2) + 0.0, round(self.last_slope, 2) + 0.0
        return f"{shown:.2f} ({_word(shown)}), {last:.2f} at last"

    def summary(self) -> dict[str, Any]:
        """Every figure."""
        return {
            "operation": self.operation,
            "sizes": self.sizes,
            "ms": [round(value, 4) for value in self.ms],
            "slope": round(self.slope, 4),
            "last_slope": round(self.last_slope, 4),
            "growth": round(self.growth, 4),
        }


@dataclass(slots=True)
class Axis:
    """The curves of operations over one kind of size; `facts` say what the sizes really were."""

    name: str
    curves: list[Curve] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The table for people."""
        sizes = self.curves[0].sizes
        head = "".join(f"{size:>10,}" for size in sizes)
        lines = [
            f"by {self.name}; milliseconds, medians",
            f"{'':<28}{head}{'last/first':>12}  slope",
        ]
        for curve in self.curves:
            cells = "".join(f"{value:>10.2f}" for value in curve.ms)
            line = f"{curve.operation:<28}{cells}{curve.growth:>12.2f}  {curve.named_slope}"
            lines.append(line)
        return "\n".join([*lines, *(f"  {fact}" for fact in self.facts)])

    def summary(self) -> dict[str, Any]:
        """Every figure."""
        curves = [curve.summary() for curve in self.curves]
        return {"axis": self.name, "curves": curves, "facts": self.facts}


def _word(slope: float) -> str:
    if abs(slope) <= _FLAT_MAX:
        return "flat"
    if slope < 0:
        return "falls"
    least, most = _LINEAR
    if slope < least:
        return "below linear"
    return "linear" if slope <= most else "above linear"
