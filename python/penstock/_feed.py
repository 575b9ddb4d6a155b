"""feed: a loader that somebody else wrote, with its batches on the device."""

from __future__ import annotations

import collections
import html
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ._engines import engine_for, resolve
from ._errors import InvalidArgument
from ._transfers import expander_for

_TIMELINE_LENGTH = 4096


def feed(loader: Iterable[Any], device: Any = "auto", prefetch_depth: int = 2) -> Feed:
    """Wrap a loader so that its batches arrive on a device, `prefetch_depth` of them ahead.

    `loader` is any iterable of batches, a DataLoader first of all; a batch is what `to_device` takes. Each becomes one
    packed transfer on a copy stream. When a batch is handed out, PyTorch's current stream waits for it, and the host
    does not. Batches stay valid for as long as they are kept.

    An object with its own `pin_memory()` has it called (with the device where it takes one), then its
    `to(device, non_blocking=True)` where it has one; see also `register_batch_type`.

    Pageable batches of a loader with worker processes (`num_workers` above 0) are moved by threads of penstock, in the
    background. On a GPU, tensors of 1 MiB and more that this process itself makes are copied into pinned memory by
    PyTorch's threads, which have just made them: other threads would take their cores. An iterable around such a loader
    has to pass on its `num_workers` to be known as one.

    All code of yours runs on the thread that iterates: `prefetch_depth` more batches are asked of the loader before one
    is handed out. So a loader must not overwrite a batch that it has yielded (DataLoader does not), and leaving the
    loop early leaves batches that it has produced unused. Iterate within one stream context: the memory of a batch is
    of the stream that was current when it was sent.

    `device`: "auto", "cuda", "cuda:1", "host", or a torch.device. `prefetch_depth`: 0 and up. Raises InvalidArgument
    for others, and DeviceError in a DataLoader's worker process. Exceptions of the loader reach the loop unchanged,
    after the batches before them.
    """
    return Feed(loader, device, prefetch_depth)


class Feed:
    """What `feed` returns: an iterable with the length and the attributes of the loader that it wraps."""

    def __init__(self, loader: Iterable[Any], device: Any = "auto", prefetch_depth: int = 2):
        if isinstance(prefetch_depth, bool) or not isinstance(prefetch_depth, int) or prefetch_depth < 0:
            raise InvalidArgument(f"prefetch_depth is a number of batches, 0 or more, not {prefetch_depth!r}.")
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"penstock.feed takes an iterable of batches, not {type(loader).__name__}.")
        self.loader = loader
        self.prefetch_depth = prefetch_depth
        self.device = resolve(device)
        self._statistics = FeedStatistics(self.device, prefetch_depth)
        self._state: Any = None
        engine_for(self.device)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f"penstock.feed({self.loader!r}, device={self.device!r}, prefetch_depth={self.prefetch_depth})"

    def __iter__(self) -> Iterator[Any]:
        engine = engine_for(self.device)
        expand = expander_for(engine)
        statistics = self._statistics
        # Where workers make the batches, this process's threads are free to move them.
        pin = not getattr(self.loader, "num_workers", 0)
        has_state = callable(getattr(self.loader, "state_dict", None))
        self._state = None
        clock = time.perf_counter
        pending: collections.deque[tuple[Any, Any, float, float, float]] = collections.deque()
        failure: Exception | None = None
        finished = False
        source = iter(self.loader)
        try:
            while True:
                while not finished and len(pending) <= self.prefetch_depth:
                    asked = clock()
                    try:
                        batch = next(source)
                        fetched = clock()
                        flight = engine.send(batch, expand, pin)
                        del batch
                    except StopIteration:
                        finished = True
                    except Exception as error:
                        failure = error
                        finished = True
                    else:
                        state = self.loader.state_dict() if has_state else None
                        pending.append((flight, state, asked, fetched, clock()))
                        del flight
                if not pending:
                    break
                flight, state, asked, fetched, sent = pending.popleft()
                taken = clock()
                batch = flight.land()
                self._state = state
                statistics._add(flight, asked, fetched, sent, taken, clock())
                del flight, state
                yield batch
                del batch
            if failure is not None:
                _note(failure, f"raised while penstock.feed asked for batch {statistics.batches} and sent it")
                raise failure
            self._state = None
        finally:
            pending.clear()
            del failure, source

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the loader, or to its sampler where only that takes it."""
        for owner in (
            self.loader,
            getattr(self.loader, "sampler", None),
            getattr(self.loader, "batch_sampler", None),
        ):
            for candidate in (owner, getattr(owner, "sampler", None)):
                if callable(getattr(candidate, "set_epoch", None)):
                    candidate.set_epoch(epoch)
                    return
        raise AttributeError(f"neither {type(self.loader).__name__} nor its sampler has set_epoch")

    def state_dict(self) -> Any:
        """The loader's state as of the batch that was handed out last, not counting those that were asked for ahead."""
        return self.loader.state_dict() if self._state is None else self._state  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        """Passes a state to the loader."""
        self._state = None
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]

    def stats(self) -> FeedStatistics:
        """What this feed did so far."""
        return self._statistics


@dataclass
class FeedStatistics:
    """What a feed did, summed over its epochs. Seconds are of the thread that iterates."""

    device: str
    prefetch_depth: int
    batches: int = 0
    arrays: int = 0
    bytes: int = 0
    loader_seconds: float = 0.0  #: waiting for the wrapped loader
    send_seconds: float = 0.0  #: taking batches apart, packing and enqueuing them
    land_seconds: float = 0.0  #: handing batches out; on the host device this holds the wait for them
    timeline: collections.deque = field(default_factory=lambda: collections.deque(maxlen=_TIMELINE_LENGTH), repr=False)

    def _add(self, flight: Any, asked: float, fetched: float, sent: float, taken: float, landed: float) -> None:
        self.batches += 1
        self.arrays += flight.arrays
        self.bytes += flight.bytes
        self.loader_seconds += fetched - asked
        self.send_seconds += sent - fetched
        self.land_seconds += landed - taken
        self.timeline.append((asked, fetched, sent, taken, landed))

    def _rows(self) -> list[tuple[str, str]]:
        count = max(self.batches, 1)
        return [
            ("device", self.device),
            (
                "batches",
                f"{self.batches}, {self.arrays / count:.1f} arrays and {self.bytes / count / 2**20:.3g} MiB each",
            ),
            (
                "waiting for the loader",
                f"{self.loader_seconds:.3f} s, {1e6 * self.loader_seconds / count:.0f} µs a batch",
            ),
            ("sending", f"{self.send_seconds:.3f} s, {1e6 * self.send_seconds / count:.0f} µs a batch"),
            ("handing out", f"{self.land_seconds:.3f} s, {1e6 * self.land_seconds / count:.0f} µs a batch"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<24}{value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in self._rows())
        return f"<table>{rows}</table>"

    def plot(self, axes: Any = None) -> Any:
        """Draw when each batch was fetched, sent and handed out; needs matplotlib. Returns the axes."""
        from ._plots import draw_lanes

        lanes = (("loader", 0, 1), ("send", 1, 2), ("hand out", 3, 4))
        return draw_lanes([(label, [(t[i], t[k]) for t in self.timeline]) for label, i, k in lanes], axes)


def _note(error: BaseException, text: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(text)
