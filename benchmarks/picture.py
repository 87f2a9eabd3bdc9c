"""Curves as a picture: a panel for each kind of size, both scales logarithmic."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.curves import Axis

_COLUMNS = 2
_PANEL_INCHES = (6.2, 4.6)
_DOTS_PER_INCH = 100
# The palette of Okabe and Ito, which those who are colour-blind can tell apart, and shapes besides.
_LOOKS = {
    "insert": ("#0072B2", "o"),
    "count_rows": ("#009E73", "s"),
    "query": ("#D55E00", "^"),
    "describe_table": ("#CC79A7", "D"),
    "list": ("#000000", "v"),
    "create_table": ("#E69F00", "P"),
}
# Of operations that are asked right after a change.
_AFTER = " after "


def draw(axes: Sequence[Axis], path: Path) -> None:
    """Draw every axis in a panel of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = min(_COLUMNS, len(axes))
    lines = -(-len(axes) // columns)
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * lines), layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for panel, axis in zip(panels, axes, strict=False):
        _draw_panel(panel, axis)
    for panel in panels[len(axes) :]:
        panel.remove()
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _draw_panel(panel: Axes, axis: Axis) -> None:
    for curve in axis.curves:
        colour, marker = _look(curve.operation)
        panel.plot(
            curve.sizes,
            curve.ms,
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.6,
            linestyle="--" if _AFTER in curve.operation else "-",
            label=f"{curve.operation}: {curve.named_slope}",
        )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title(f"Cost by {axis.name}")
    panel.set_xlabel(axis.name)
    panel.set_ylabel("milliseconds (median)")
    panel.set_xticks(axis.curves[0].sizes)
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for scale in (panel.xaxis, panel.yaxis):
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        scale.set_minor_formatter(NullFormatter())
    panel.xaxis.minorticks_off()
    panel.grid(visible=True, which="major", linewidth=0.5, alpha=0.5)
    # Room above the curves, so that none runs below the legend.
    least, most = panel.get_ylim()
    panel.set_ylim(least, most * (most / least) ** 0.6)
    panel.legend(title="operation: slope", loc="upper left", fontsize=8, title_fontsize=8)


def _look(operation: str) -> tuple[str, str]:
    """The colour and marker of whichever name the operation's begins with."""
    return next(look for name, look in _LOOKS.items() if operation.startswith(name))
