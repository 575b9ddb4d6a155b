"""Pictures for notebooks, drawn with matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

Spans = list[tuple[float, float]]
Row = tuple[str, Spans]

# The colours of the command's report. A row with another name takes one of matplotlib's.
_COLOURS = {
    "host gather": "#c98a1b",
    "send": "#c98a1b",
    "transfer": "#2673b8",
    "device gather": "#7a5bb5",
    "loader": "#8a8f98",
    "waiting for data": "#cf5044",
    "your step": "#3a8f5d",
}


def pyplot() -> Any:
    """matplotlib's pyplot. Raises ImportError that says how to get it."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
    return pyplot


def rows(timeline: Iterable[Any]) -> list[Row]:
    """The rows of a timeline of BatchTimes. A step is the time from a batch's arrival to the next request."""
    times = list(timeline)
    wraps = any(t.loader_end > 0 for t in times)
    return [
        ("loader", [(t.loader_begin, t.loader_end) for t in times]),
        ("send" if wraps else "host gather", [(t.gather_begin, t.gather_end) for t in times]),
        ("transfer", [(t.transfer_begin, t.transfer_end) for t in times if t.link_bytes > 0]),
        ("device gather", [(t.transfer_begin, t.transfer_end) for t in times if t.link_bytes == 0]),
        ("waiting for data", [(t.asked, t.arrived) for t in times]),
        ("your step", [(t.arrived, following.asked) for t, following in itertools.pairwise(times)]),
    ]


def draw_rows(rows: Sequence[tuple[str, Sequence[tuple[float, float]]]], axes: Any = None, title: str = "") -> Any:
    """Draws a row for each (label, [(begin, end) in seconds, ...]), the first on top. Leaves out rows without a span.
    Returns the axes, which are new ones if none are given."""
    shown = [(label, [span for span in spans if span[1] > span[0]]) for label, spans in rows]
    shown = [(label, spans) for label, spans in shown if spans]
    if axes is None:
        size = (10, 1.2 + 0.45 * max(1, len(shown)))
        axes = pyplot().subplots(figsize=size, layout="constrained")[1]
    moments = [moment for _, spans in shown for span in spans for moment in span]
    start = min(moments, default=0.0)
    factor, unit = (1, "s") if max(moments, default=0.0) - start >= 10 else (1e3, "ms")
    for height, (label, spans) in enumerate(shown):
        bars = [(factor * (begin - start), factor * (end - begin)) for begin, end in spans]
        colour = _COLOURS.get(label, f"C{height}")
        # The edge keeps spans visible that are narrower than a pixel.
        axes.broken_barh(bars, (height - 0.4, 0.8), label=label, facecolors=colour, edgecolors=colour, linewidth=0.5)
    axes.set_yticks(range(len(shown)), [label for label, _ in shown])
    axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
    axes.set_xlabel(f"time in {unit}")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title)
    return axes
