"""How long the stages of a DataLoader take, batch by batch: fetch, collate, transport, pin. See docs/statistics.md."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from time import monotonic  # the same clock in all processes of a machine
from typing import Any, NamedTuple


class Stages(NamedTuple):
    """Seconds of a batch. Those of workers are divided by the number of workers."""

    fetch: float
    collate: float
    write: float = 0.0  # by the worker, for this process
    receive: float = 0.0
    pin: float = 0.0  # by a DataLoader without workers


class FetchWatch:
    """Stands in for the `fetch` of one of PyTorch's fetchers, which gets samples and then calls collate_fn."""

    def __init__(self, fetcher: Any):
        self._fetcher = weakref.ref(fetcher)  # which has this, and whose end the user's generators may await
        self.began: float | None = None  # when the batch that is under way did
        self.pins = False  # what comes between a batch's collate and its user is that it is pinned
        self._collated = 0.0
        self._stages: Stages | None = None

    def __call__(self, index: Any) -> Any:
        fetcher = self._fetcher()
        if fetcher is None:
            raise ReferenceError("this fetches nothing more: the DataLoader's fetcher that it belongs to is gone")
        self.began = monotonic()
        try:
            return type(fetcher).fetch(fetcher, index)
        finally:
            self.began = None

    def note(self, fetched: float, collated: float) -> None:
        if self.began is not None:
            self._stages = Stages(fetched - self.began, collated - fetched)
            self._collated = collated

    def take(self) -> Stages | None:
        """The stages of the latest batch, once, as soon as its iterator has given it."""
        stages, self._stages = self._stages, None
        return stages._replace(pin=monotonic() - self._collated) if stages and self.pins else stages


class _Collate:
    """Stands in for a fetcher's collate_fn."""

    def __init__(self, watch: FetchWatch, collate: Callable[[Any], Any]):
        self._watch = watch
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        fetched = monotonic()
        batch = self._collate(samples)
        self._watch.note(fetched, monotonic())
        return batch


def watch_fetch(fetcher: Any) -> FetchWatch | None:
    """Times when the fetcher begins a batch, from its next one on. None if it is none of PyTorch's."""
    module = sys.modules.get("torch.utils.data._utils.fetch")
    known = [getattr(module, name, None) for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher")]
    if fetcher is None or type(fetcher) not in known:
        return None
    watch = vars(fetcher).get("fetch")
    if type(watch) is not FetchWatch:
        watch = fetcher.fetch = FetchWatch(fetcher)
    return watch


def watch_batches(source: Any) -> FetchWatch | None:
    """Times the batches that a DataLoader's iterator makes in this process. None if this is no such iterator."""
    fetcher = getattr(source, "__dict__", {}).get("_dataset_fetcher")
    watch = watch_fetch(fetcher)
    if watch is not None and type(fetcher.collate_fn) is not _Collate:
        fetcher.collate_fn = _Collate(watch, fetcher.collate_fn)
        watch.pins = getattr(source, "_pin_memory", False) is True
    return watch


def why_unknown(loader: Any, of_workers: str | None) -> str:
    """Why the stages of a loader's batches are not timed. `of_workers`: why its workers do not fill slots, if it has
    some."""
    if of_workers:
        return f"its workers send their batches as they do without penstock ({of_workers})"
    module = sys.modules.get("torch.utils.data")
    if module is None or not isinstance(loader, module.DataLoader):
        return f"a loader of type {type(loader).__name__} is not a DataLoader"
    return f"a loader of type {type(loader).__name__} makes its batches in its own way"


def workers_of(loader: Any) -> tuple[int, bool]:
    """How many workers a loader has, and whether it may start them in each epoch: a loader that does not say may."""
    workers = getattr(loader, "num_workers", None)
    if type(workers) is not int or workers < 0:
        return 0, True
    return workers, workers > 0 and not getattr(loader, "persistent_workers", False)
