#!/usr/bin/env python3
"""State that leaves a GPU and comes back: penstock.park, resume and swap beside the usual ways.

    park.py --weights-gb 8 --json park.json > park.md

A random transformer in bfloat16 with its Adam state, which is twice as large. All ways run in one process, on the same
tensors, one after the other; those that are slow move `--baseline-gb` of them. Each time is of the host's clock, from
an idle GPU to an idle GPU. After each trip the bytes are compared by sums over all words and over their places. Figures
are medians of `--repetitions`, but those of the first park, which pins the memory. The table goes to standard output as
Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import penstock

HIDDEN = 4096


def transformer(gigabytes: float, device: str, hidden: int = HIDDEN) -> torch.nn.Module:
    """Layers of 12 x hidden^2 weights in bfloat16, random, with the small tensors that layers have."""
    shapes = [(hidden, hidden)] * 4 + [(4 * hidden, hidden), (hidden, 4 * hidden), (hidden,), (hidden,)]
    layers = max(1, round(gigabytes * 1e9 / (24 * hidden * hidden)))
    return torch.nn.ModuleList(
        torch.nn.ParameterList(torch.randn(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
        for _ in range(layers)
    )


def with_adam(module: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a module after a step, without gradients."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0)
    for parameter in module.parameters():
        moments = {name: torch.randn_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    return optimizer


def tensors_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[torch.Tensor]:
    states = [] if optimizer is None else optimizer.state.values()
    moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
    return [*(parameter.data for parameter in module.parameters()), *moments]


def sums(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Of each tensor: the sum of its words, and that of rows of words times their number."""
    found = []
    for tensor in tensors:
        rows = tensor.view(torch.int16).view(-1, 512).sum(1)
        found.append((int(rows.sum()), int((rows * torch.arange(len(rows), device=rows.device)).sum())))
    return found


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def seconds(work: Callable[[], Any]) -> float:
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Trips:
    """Times of trips there and back, whose bytes are verified."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors, self.before = tensors, sums(tensors)
        self.down: list[float] = []
        self.up: list[float] = []

    def make(self, down: Callable[[], Any], up: Callable[[], Any]) -> None:
        self.down.append(seconds(down))
        self.up.append(seconds(up))
        self.verify()

    def verify(self) -> None:
        if sums(self.tensors) != self.before:
            sys.exit("park.py: other bytes came back")

    def row(self, count: int) -> dict[str, float]:
        down, up = statistics.median(self.down), statistics.median(self.up)
        return {"down_s": down, "up_s": up, "down_gbps": count / down / 1e9, "up_gbps": count / up / 1e9}


def raw_copy(device: str, repetitions: int) -> dict[str, float]:
    """One copy of 1 GiB between pinned and device memory: the ceiling of this link."""
    on_device = torch.randn(1 << 29, device=device).view(torch.uint8)[: 1 << 30]
    pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    down, up = [], []
    for _ in range(repetitions + 1):
        down.append(seconds(lambda: pinned.copy_(on_device, non_blocking=True)))
        up.append(seconds(lambda: on_device.copy_(pinned, non_blocking=True)))
    row = {"down_s": statistics.median(down[1:]), "up_s": statistics.median(up[1:])}
    return {**row, "down_gbps": 2**30 / row["down_s"] / 1e9, "up_gbps": 2**30 / row["up_s"] / 1e9}


def emptied(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)


def filled(tensors: list[torch.Tensor], copies: list[torch.Tensor], non_blocking: bool = False) -> None:
    for tensor, saved in zip(tensors, copies, strict=True):
        tensor.untyped_storage().resize_(saved.nbytes)
        tensor.copy_(saved, non_blocking=non_blocking)


def to_cpu(tensors: list[torch.Tensor]) -> Trips:
    """`.to("cpu")` of each tensor, and back."""
    trips, copies = Trips(tensors), []

    def down() -> None:
        copies[:] = [tensor.to("cpu") for tensor in tensors]
        emptied(tensors)

    trips.make(down, lambda: filled(tensors, copies))
    return trips


def pinned_copies(tensors: list[torch.Tensor], repetitions: int) -> tuple[Trips, Trips]:
    """A pinned buffer for each tensor, as servers put weights to sleep: the first time, and with buffers that stay."""
    first, later, copies = Trips(tensors), Trips(tensors), []

    def pin() -> None:
        copies[:] = [torch.empty_like(t, device="cpu", pin_memory=torch.cuda.is_available()) for t in tensors]
        down()

    def down() -> None:
        for tensor, saved in zip(tensors, copies, strict=True):
            saved.copy_(tensor, non_blocking=True)
        synchronize()
        emptied(tensors)

    def up() -> None:
        filled(tensors, copies, non_blocking=True)

    first.make(pin, up)
    for _ in range(repetitions):
        later.make(down, up)
    return first, later


def parks(things: Any, tensors: list[torch.Tensor], repetitions: int) -> tuple[Trips, Trips, penstock.ParkStatistics]:
    """The first park, which pins the memory, later ones, and what is held."""
    first, later = Trips(tensors), Trips(tensors)
    state: list[penstock.Parked] = []
    first.make(lambda: state.append(penstock.park(things)), lambda: state[0].resume())
    for _ in range(repetitions):
        later.make(state[0].park, state[0].resume)
    return first, later, state[0].stats()


def frozen(gigabytes: float, device: str, repetitions: int) -> dict[str, float]:
    """A frozen base, and 1 % of it that is trained: the whole, and again after the 1 % was written."""
    base, adapter = transformer(gigabytes, device), transformer(gigabytes / 100, device, HIDDEN // 8)
    base.requires_grad_(False)
    trips = Trips(tensors_of(base))
    penstock.park([base, adapter]).resume()  # so that its memory is pinned
    state = penstock.Parked([base, adapter], skip_frozen=True)
    whole, again = [], []
    for turn in range(repetitions + 1):
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.add_(1)
        (again if turn else whole).append(seconds(state.park))
        state.resume()
        trips.verify()
    row = {"whole_s": whole[0], "again_s": statistics.median(again), "skipped_bytes": state.stats().skipped["frozen"]}
    return {**row, "times": row["whole_s"] / row["again_s"]}


def swaps(gigabytes: float, device: str, repetitions: int) -> dict[str, float]:
    """Two models in turn, beside a park of one."""
    models = [transformer(gigabytes, device) for _ in range(1)]
    trips = [Trips(tensors_of(models[0]))]
    states = [penstock.park(models[0])]
    models.append(transformer(gigabytes, device))
    trips.append(Trips(tensors_of(models[1])))
    states.append(penstock.park(models[1]))
    one_way = []
    for _ in range(repetitions):
        states[0].resume()
        one_way.append(seconds(states[0].park))
    states[0].resume()
    there, both = 0, []
    for _ in range(2 * repetitions):
        out, coming = states[there], states[1 - there]
        both.append(seconds(lambda out=out, coming=coming: penstock.swap(out, coming)))
        there = 1 - there
        trips[there].verify()
    row = {"one_way_s": statistics.median(one_way), "swap_s": statistics.median(both)}
    return {**row, "times": row["swap_s"] / row["one_way_s"]}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    device, repetitions = arguments.device, arguments.repetitions
    module = transformer(arguments.weights_gb, device)
    optimizer = with_adam(module)
    tensors = tensors_of(module, optimizer)
    count, some = bytes_of(tensors), []
    for tensor in tensors:
        if bytes_of(some) < arguments.baseline_gb * 1e9:
            some.append(tensor)
    ways = {"raw pinned copy": raw_copy(device, repetitions)}
    first, later, held = parks([module, optimizer], tensors, repetitions)
    ways["penstock, first"], ways["penstock, later"] = first.row(count), later.row(count)
    ways[".to('cpu')"] = to_cpu(some).row(bytes_of(some))
    first, later = pinned_copies(some, repetitions)
    ways["pinned copies, first"], ways["pinned copies, later"] = (t.row(bytes_of(some)) for t in (first, later))
    del module, optimizer, tensors, some, first, later
    return {
        "bytes": count,
        "host_bytes": held.host_bytes,
        "held": held.host_bytes / held.bytes,
        "ways": ways,
        "frozen": frozen(arguments.weights_gb, device, repetitions),
        "swap": swaps(arguments.weights_gb, device, repetitions),
    }


def table(results: dict[str, Any]) -> str:
    lines = ["| way | down, GB/s | up, GB/s |", "| --- | --- | --- |"]
    lines += [f"| {way} | {row['down_gbps']:.1f} | {row['up_gbps']:.1f} |" for way, row in results["ways"].items()]
    lora, swap = results["frozen"], results["swap"]
    return "\n".join(
        [
            *(*lines, ""),
            f"{results['bytes'] / 1e9:.1f} GB; {results['held']:.3f} bytes held on the host for each.",
            f"Frozen, and 1 % of it: {lora['whole_s']:.3f} s; again {lora['again_s']:.4f} s, {lora['times']:.0f} x.",
            f"A swap: {swap['swap_s']:.3f} s, {swap['times']:.2f} x one direction ({swap['one_way_s']:.3f} s).",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--weights-gb", type=float, default=8.0)
    parser.add_argument("--baseline-gb", type=float, default=3.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)
    print(table(results))


if __name__ == "__main__":
    main()
