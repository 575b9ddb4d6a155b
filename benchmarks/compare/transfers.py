"""Other transfers than a dataset's batches: a large tensor, and what feed takes of the thread."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .data import random_bytes
from .setting import OURS, Contender, Result, Setting, WrongBytes, attempt, cost_of_next, median_call, opened


@dataclass
class Tensors:
    """Named tensors on the host, and their layout on the device. `make` gives a function without arguments that moves
    them there and returns a dict."""

    name: str
    host: dict[str, torch.Tensor]
    file: pathlib.Path | None = None

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.host.values())


def check(moved: Any, job: Tensors, setting: Setting) -> None:
    moved = dict(moved.items())
    if moved.keys() != job.host.keys():
        raise WrongBytes("other names came than were sent")
    for name, tensor in job.host.items():
        there = moved[name]
        if there.device.type != setting.target.type:
            raise WrongBytes(f"{name} is on {there.device}")
        if there.dtype != tensor.dtype or not torch.equal(there.cpu(), tensor):
            raise WrongBytes(f"{name} has other bytes than were sent")


def move_all(job: Tensors, setting: Setting, contenders: list[Contender]) -> list[Result]:
    """Until each call returns, and until the tensors are there."""

    def measure(contender: Contender, result: Result) -> None:
        with opened(contender, job, setting, None) as call:
            check(call(), job, setting)
            returned, done = median_call(call, setting)
            result.figures = {"thread_us": 1e6 * returned, "done_us": 1e6 * done, "gbps": job.bytes / done / 1e9}
            check(call(), job, setting)
            result.verified = True

    return [attempt(job.name, contender, setting, measure) for contender in contenders]


def per_tensor(non_blocking: bool, pin: bool = False) -> Callable:
    """Moves each tensor by itself; with `pin`, from memory that was pinned before, outside the clock."""

    def make(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        target = setting.target
        host = {name: t.pin_memory() for name, t in job.host.items()} if pin else job.host
        return lambda: {name: t.to(target, non_blocking=non_blocking, copy=True) for name, t in host.items()}

    return make


def tensordict_threads(job: Tensors, setting: Setting, _: Any) -> Callable[[], Any]:
    from tensordict import TensorDict

    tree = TensorDict(job.host, batch_size=[])
    threads = min(8, setting.cores)
    return lambda: tree.to(setting.target, non_blocking_pin=True, num_threads=threads)


def ours_to_device(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
    import penstock

    return lambda: penstock.to_device(job.host, setting.device)


def one_large(setting: Setting) -> list[Result]:
    size = 1 << (24 if setting.quick else 30 if setting.on_gpu else 28)
    job = Tensors(f"one pageable tensor of {size >> 20} MiB", {"t": random_bytes(size)})

    def into_pinned_buffer(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        buffer = torch.empty_like(job.host["t"], pin_memory=True)
        return lambda: {"t": buffer.copy_(job.host["t"]).to(setting.target, non_blocking=True)}

    def pin_then_move(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        return lambda: {"t": job.host["t"].pin_memory().to(setting.target, non_blocking=True)}

    contenders = [
        Contender("pinned before: the raw copy", per_tensor(True, pin=True), gpu_only=True, ceiling=True),
        Contender("`.to()`", per_tensor(False)),
        Contender("`.to(non_blocking=True)`", per_tensor(True)),
        Contender("`.pin_memory().to(non_blocking=True)`", pin_then_move, gpu_only=True),
        Contender("`.copy_()` into a pinned buffer, `.to(non_blocking=True)`", into_pinned_buffer, gpu_only=True),
        Contender("tensordict, non_blocking_pin, threads", tensordict_threads, ("tensordict",), gpu_only=True),
        Contender("penstock.to_device", ours_to_device, **OURS),
    ]
    return move_all(job, setting, contenders)


def feed_costs(setting: Setting) -> list[Result]:
    """The time of the consumer's thread for a batch that its loader has ready."""
    rows, many = (64, 50) if setting.quick else (256, 500)
    batches = {
        f"own cost: 2 tensors, {rows}x64 float32 and {rows} int64": (torch.rand(rows, 64), torch.arange(rows)),
        f"own cost: 2 tensors, {rows}x3x224x224 uint8 and {rows} int64": (
            random_bytes(rows, 3, 224, 224),
            torch.arange(rows),
        ),
        f"own cost: dict of {many} tensors of 1 KiB": {f"t{k}": torch.rand(256) for k in range(many)},
    }
    results = []
    for name, batch in batches.items():
        contenders = [
            Contender("`.to(non_blocking=True)` of each, pinned before", _moving(pin=True), gpu_only=True),
            Contender("`.to(non_blocking=True)` of each", _moving(pin=False)),
            Contender("penstock.feed", _feeding, **OURS),
        ]
        results += [attempt(name, c, setting, lambda c, r, b=batch: _own_cost(c, r, b, setting)) for c in contenders]
    return results


def _leaves(batch: Any) -> list[torch.Tensor]:
    return list(batch.values() if isinstance(batch, dict) else batch)


def _moving(pin: bool) -> Callable:
    def make(batch: Any, setting: Setting, _: Any) -> Iterator:
        host = [t.pin_memory() for t in _leaves(batch)] if pin else _leaves(batch)
        while True:
            yield [t.to(setting.target, non_blocking=True, copy=True) for t in host]

    return make


class _Ready:
    """Stands for a loader whose worker processes always have the next batch ready."""

    num_workers = 1

    def __init__(self, batch: Any):
        self.batch = batch

    def __iter__(self) -> Iterator:
        return itertools.repeat(self.batch)


def _feeding(batch: Any, setting: Setting, _: Any) -> Iterator:
    import penstock

    return iter(penstock.feed(_Ready(batch), device=setting.device))


def _own_cost(contender: Contender, result: Result, batch: Any, setting: Setting) -> None:
    """The wall and processor time of `next()`, with the device idle: only the thread's own work counts."""
    with opened(contender, batch, setting, None) as batches:
        for key, rest in (("", 0.0), ("_after_rest", 0.002)):
            wall, processor, moved = cost_of_next(batches, setting, rest)
            result.figures[f"thread_us{key}"] = 1e6 * wall
            result.figures[f"processor_us{key}"] = 1e6 * processor
        for there, tensor in zip(_leaves(moved), _leaves(batch), strict=True):
            if not torch.equal(there.cpu(), tensor):
                raise WrongBytes("a batch arrived with other bytes than were sent")
        result.verified = True
