"""The figures of a feed and of a Loader: see docs/statistics.md."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _core, _plots

if TYPE_CHECKING:  # the types of the figures that `__getattr__` looks up
    _Figures = _core.FeedStatistics
else:
    _Figures = object


def lines_as_html(what: str, lines: list[str]) -> str:
    """A paragraph and a list: how a notebook shows what `describe()` says."""
    items = "".join(f"<li>{html.escape(line, quote=False)}</li>" for line in lines)
    return f"<p>{html.escape(what, quote=False)}</p><ul>{items}</ul>"


class FeedStatistics(_Figures):
    """What a feed or a Loader did, and where its time went: docs/statistics.md explains the figures. Raises nothing.

    Attributes:
        device: Where the batches went.
        timeline: A list of BatchTimes of the latest batches.

    Examples:
        >>> fed = penstock.feed(loader, "host")
        >>> epoch = list(fed)
        >>> fed.stats().samples, fed.stats().batches
        (600, 10)
    """

    def __init__(
        self,
        device: str,
        figures: Callable[[], _core.FeedStatistics],
        timeline: Callable[[], list[_core.BatchTimes]],
    ):
        self.device = device
        self._figures = figures
        self._timeline = timeline

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(self._figures(), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.as_dict()]

    @property
    def timeline(self) -> list[_core.BatchTimes]:
        """When the stages of the latest batches began and ended, oldest first."""
        return self._timeline()

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, without the timeline: plain numbers, strings, and a list of strings."""
        return {"device": self.device, **self._figures().as_dict()}

    def __str__(self) -> str:
        return str(self._figures())

    def __repr__(self) -> str:
        return f"<penstock.FeedStatistics of {self.device}\n{self}>"

    def _repr_html_(self) -> str:
        figures = self._figures()
        rows = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>" for label, text in figures.lines()
        )
        return f"<table>{rows}</table><p>{html.escape(figures.sentence())}</p>"

    def plot(self, axes: Any = None) -> Any:
        """Draw when each batch was made, moved and waited for; needs matplotlib. Returns the axes."""
        return _plots.draw_rows(_plots.rows(self.timeline), axes, "penstock, batch by batch")
