"""What a feed and a Loader did, in figures: see docs/statistics.md."""

from __future__ import annotations

import collections
import dataclasses
import html
from dataclasses import dataclass, field
from typing import Any

from . import _core, _plots

_TIMELINE_LENGTH = 4096


@dataclass
class FeedStatistics:
    """What a feed did, summed over its epochs. Seconds are of the thread that iterates.

    `startup_seconds`, `loader_seconds`, `send_seconds`, `land_seconds` and `consumer_seconds` follow one another and
    make up `seconds`, but for what the account itself costs.
    """

    device: str
    prefetch_depth: int
    batches: int = 0
    samples: int = 0  #: extent of the first axis of each batch's first array, summed
    arrays: int = 0
    bytes: int = 0
    seconds: float = 0.0  #: wall time from an epoch's first request to its end
    startup_seconds: float = 0.0  #: each epoch's wait for its first batch: worker processes start in it
    loader_seconds: float = 0.0  #: waiting for the wrapped loader's other batches
    send_seconds: float = 0.0  #: taking batches apart, packing and enqueuing them
    land_seconds: float = 0.0  #: handing batches out; on the host device this holds the wait for them
    consumer_seconds: float = 0.0  #: between a batch that was handed out and the next request: your step
    timeline: collections.deque = field(default_factory=lambda: collections.deque(maxlen=_TIMELINE_LENGTH), repr=False)

    @property
    def samples_per_second(self) -> float:
        """Samples over wall time; 0 before anything was fed."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, without the timeline: plain numbers and strings."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "timeline"]
        return {**{name: getattr(self, name) for name in names}, "samples_per_second": self.samples_per_second}

    def _add(self, flight: Any, asked: float, fetched: float, sent: float, taken: float, landed: float) -> None:
        self.batches += 1
        self.samples += flight.samples
        self.arrays += flight.arrays
        self.bytes += flight.bytes
        self.loader_seconds += fetched - asked
        self.send_seconds += sent - fetched
        self.land_seconds += landed - taken
        self.timeline.append((asked, fetched, sent, taken, landed))

    def _add_consumer(self, seconds: float) -> None:
        self.consumer_seconds += seconds
        self.seconds += seconds

    def _rows(self) -> list[tuple[str, str]]:
        count = max(self.batches, 1)

        def per_batch(seconds: float) -> str:
            return f"{seconds:.3f} s, {1e6 * seconds / count:.0f} µs a batch"

        return [
            ("device", self.device),
            (
                "batches",
                f"{self.batches}, {self.arrays / count:.1f} arrays and {self.bytes / count / 2**20:.3g} MiB each",
            ),
            ("samples", f"{self.samples}, {self.samples_per_second:.0f} a second"),
            ("time", f"{self.seconds:.3f} s, of which"),
            ("  startup", f"{self.startup_seconds:.3f} s, until the first batch of each epoch"),
            ("  loader", per_batch(self.loader_seconds)),
            ("  send", per_batch(self.send_seconds)),
            ("  hand out", per_batch(self.land_seconds)),
            ("  your step", per_batch(self.consumer_seconds)),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<14}{value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in self._rows())
        return f"<table>{rows}</table>"

    def plot(self, axes: Any = None) -> Any:
        """Draw when each batch was fetched, sent and handed out; needs matplotlib. Returns the axes."""
        return _plots.draw_lanes(_plots.feed_lanes(self.timeline), axes, "penstock.feed, batch by batch")


class LoaderStatistics:
    """What a Loader did: the figures of the C++ side's account, and `timeline`, a list of BatchTimes."""

    def __init__(self, statistics: _core.LoaderStatistics, timeline: list[_core.BatchTimes]):
        self._statistics = statistics
        self.timeline = timeline

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._statistics, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.as_dict()]

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, without the timeline: plain numbers and strings."""
        kind = type(self._statistics)
        names = [name for name, value in vars(kind).items() if isinstance(value, property) or hasattr(value, "fget")]
        return {**{name: getattr(self._statistics, name) for name in names}, "sentence": self._statistics.sentence()}

    def __str__(self) -> str:
        return str(self._statistics)

    def __repr__(self) -> str:
        return f"<penstock.LoaderStatistics\n{self}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self, axes: Any = None) -> Any:
        """Draw when each batch was gathered, moved and waited for; needs matplotlib. Returns the axes."""
        return _plots.draw_lanes(_plots.loader_lanes(self.timeline), axes, "penstock.Loader, batch by batch")
