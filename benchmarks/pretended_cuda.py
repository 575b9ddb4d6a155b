"""Lets code that is written for a GPU run on the CPU, in order: a benchmark's lines can be tried without one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch


class HostStream:
    """A stream of a host that does all work at once."""

    def wait_stream(self, other: Any) -> None:
        pass

    def record_event(self) -> HostEvent:
        return HostEvent()


class HostEvent:
    def __init__(self, **_: Any):
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: HostEvent) -> float:
        return 1e3 * (other.at - self.at)


@contextlib.contextmanager
def pretended_cuda() -> Iterator[None]:
    """Within it, streams and events do nothing, and pinning makes a copy."""
    pretended: list[tuple[Any, str, Any]] = [
        (torch.cuda, "Stream", HostStream),
        (torch.cuda, "Event", HostEvent),
        (torch.cuda, "current_stream", HostStream),
        (torch.cuda, "stream", lambda stream: contextlib.nullcontext()),
        (torch.cuda, "synchronize", lambda: None),
        (torch.cuda, "_sleep", lambda cycles: None),
        (torch.Tensor, "pin_memory", lambda tensor: tensor.clone()),
        (torch.Tensor, "record_stream", lambda tensor, stream: None),
        (torch.Tensor, "to", _copying_to),
    ]
    real = [(owner, name, getattr(owner, name)) for owner, name, _ in pretended]
    for owner, name, value in pretended:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in real:
            setattr(owner, name, value)


_to = torch.Tensor.to


def _copying_to(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """A move to another device is always a copy."""
    return _to(tensor, *arguments, **{"copy": True, **options})
