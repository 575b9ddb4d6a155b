"""Drawing timelines, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def draw_lanes(lanes: Sequence[tuple[str, Sequence[tuple[float, float]]]], axes: Any = None) -> Any:
    """A lane for each (label, [(begin, end) in seconds, ...]). Returns the axes."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
    if axes is None:
        axes = pyplot.subplots(figsize=(10, 3))[1]
    start = min((begin for _, spans in lanes for begin, end in spans if end > begin), default=0.0)
    for height, (label, spans) in enumerate(lanes):
        bars = [(1e3 * (begin - start), 1e3 * (end - begin)) for begin, end in spans if end > begin]
        axes.broken_barh(bars, (height - 0.4, 0.8), label=label, facecolors=f"C{height}")
    axes.set_yticks(range(len(lanes)), [label for label, _ in lanes])
    axes.set_xlabel("ms")
    return axes
