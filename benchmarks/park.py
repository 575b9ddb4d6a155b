#!/usr/bin/env python3
"""State that leaves a GPU and comes back: penstock.park, resume and swap beside the usual ways.

    park.py --weights-gb 8 --json park.json > park.md

A random transformer in bfloat16 with its Adam state, which is twice as large. All ways run in one process, on the same
tensors; those that are slow move `--baseline-gb` of them. Times are the host's, from an idle GPU to an idle GPU:
medians, but those of a first trip, which pins the memory. After each trip the bytes are compared by sums over all words
and over their places. The table goes to standard output as Markdown.
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
GIB = 1 << 30


def transformer(gigabytes: float, device: str, hidden: int | None = None) -> torch.nn.Module:
    """Layers of 12 x hidden^2 random weights in bfloat16, with the small tensors that layers have."""
    wide = hidden or HIDDEN
    shapes = [(wide, wide)] * 4 + [(4 * wide, wide), (wide, 4 * wide), (wide,), (wide,)]
    return torch.nn.ModuleList(
        torch.nn.ParameterList(torch.randn(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
        for _ in range(max(1, round(gigabytes * 1e9 / (24 * wide * wide))))
    )


def with_adam(module: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a module after a step, without gradients."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0)
    for parameter in module.parameters():
        moments = {name: torch.randn_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    return optimizer


def sums(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Of each tensor: the sum of its words, and that of rows of words times their number."""
    found = []
    for tensor in tensors:
        rows = tensor.detach().view(torch.int16).view(-1, 512).sum(1)
        found.append((int(rows.sum()), int((rows * torch.arange(len(rows), device=rows.device)).sum())))
    return found


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any]) -> float:
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began


def verify(tensors: list[torch.Tensor], before: list[tuple[int, int]]) -> None:
    if sums(tensors) != before:
        sys.exit("park.py: other bytes came back")


def trips(
    tensors: list[torch.Tensor], down: Callable[[], Any], up: Callable[[], Any], count: int = 1
) -> dict[str, float]:
    before, times = sums(tensors), []
    for _ in range(count):
        times.append((seconds(down), seconds(up)))
        verify(tensors, before)
    down_s, up_s = (statistics.median(each) for each in zip(*times, strict=True))
    whole = bytes_of(tensors) / 1e9
    return {"down_s": down_s, "up_s": up_s, "down_gbps": whole / down_s, "up_gbps": whole / up_s}


def raw_copy(device: str, repetitions: int) -> dict[str, float]:
    """One copy of 1 GiB between pinned and device memory: the ceiling of this link."""
    there = torch.randn(GIB // 4, device=device)
    pinned = torch.empty(GIB // 4, pin_memory=torch.cuda.is_available())
    ways = (lambda: pinned.copy_(there, non_blocking=True), lambda: there.copy_(pinned, non_blocking=True))
    trips([there], *ways)
    return trips([there], *ways, repetitions)


def usual_ways(tensors: list[torch.Tensor], repetitions: int) -> dict[str, dict[str, float]]:
    """`.to("cpu")` of each tensor, and a pinned buffer for each, as servers put weights to sleep."""
    copies: list[torch.Tensor] = []

    def empty() -> None:
        synchronize()
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)

    def to_cpu() -> None:
        copies[:] = [tensor.to("cpu", copy=True) for tensor in tensors]
        empty()

    def pin() -> None:
        copies[:] = [torch.empty_like(t, device="cpu", pin_memory=torch.cuda.is_available()) for t in tensors]
        down()

    def down() -> None:
        for tensor, saved in zip(tensors, copies, strict=True):
            saved.copy_(tensor, non_blocking=True)
        empty()

    def up() -> None:
        for tensor, saved in zip(tensors, copies, strict=True):
            tensor.untyped_storage().resize_(saved.nbytes)
            tensor.copy_(saved, non_blocking=True)

    with torch.no_grad():
        return {
            ".to('cpu')": trips(tensors, to_cpu, up),
            "pinned copies, first": trips(tensors, pin, up),
            "pinned copies, later": trips(tensors, down, up, repetitions),
        }


def frozen(gigabytes: float, device: str, repetitions: int) -> dict[str, float]:
    """A frozen base, and 1 % of it that is trained: the whole, and again after the 1 % was written."""
    base, adapter = transformer(gigabytes, device).requires_grad_(False), transformer(gigabytes / 100, device, 512)
    before = sums(list(base.parameters()))
    penstock.park([base, adapter]).resume()  # pins the memory
    state, times = penstock.Parked([base, adapter], skip_frozen=True), []
    for _ in range(repetitions + 1):
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.add_(1)
        times.append(seconds(state.park))
        state.resume()
        verify(list(base.parameters()), before)
    again = statistics.median(times[1:])
    return {"whole_s": times[0], "again_s": again, "times": times[0] / again, **state.stats().skipped}


def swaps(gigabytes: float, device: str, repetitions: int) -> dict[str, float]:
    """Two models in turn, beside a park of one."""
    models, before, states = [], [], []
    for _ in range(2):
        models.append(transformer(gigabytes, device))
        before.append(sums(list(models[-1].parameters())))
        states.append(penstock.park(models[-1]))
    one_way, both = [], []
    for _ in range(repetitions):
        states[0].resume()
        one_way.append(seconds(states[0].park))
    states[0].resume()
    for turn in range(2 * repetitions):
        there, other = turn % 2, 1 - turn % 2
        both.append(seconds(lambda there=there, other=other: penstock.swap(states[there], states[other])))
        verify(list(models[other].parameters()), before[other])
    swap_s, one_way_s = statistics.median(both), statistics.median(one_way)
    return {"one_way_s": one_way_s, "swap_s": swap_s, "times": swap_s / one_way_s}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    device, repetitions = arguments.device, arguments.repetitions
    module = transformer(arguments.weights_gb, device)
    optimizer = with_adam(module)
    tensors = list(module.parameters())
    tensors += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    some = [t for place, t in enumerate(tensors) if bytes_of(tensors[:place]) < arguments.baseline_gb * 1e9]
    state = penstock.Parked([module, optimizer])
    ways = {
        "raw pinned copy": raw_copy(device, repetitions),
        "penstock, first": trips(tensors, state.park, state.resume),
        "penstock, later": trips(tensors, state.park, state.resume, repetitions),
        **usual_ways(some, repetitions),
    }
    results = {"ways": ways, "held": state.stats().host_bytes / bytes_of(tensors), "stats": state.stats().as_dict()}
    del module, optimizer, tensors, some, state
    results["frozen"] = frozen(arguments.weights_gb, device, repetitions)
    return {**results, "swap": swaps(arguments.weights_gb, device, repetitions)}


def table(results: dict[str, Any]) -> str:
    lora, swap = results["frozen"], results["swap"]
    return "\n".join(
        [
            *("| way | down, GB/s | up, GB/s |", "| --- | --- | --- |"),
            *(f"| {way} | {row['down_gbps']:.1f} | {row['up_gbps']:.1f} |" for way, row in results["ways"].items()),
            f"\n{results['stats']['bytes'] / 1e9:.1f} GB; {results['held']:.3f} bytes held on the host for each.",
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
    parser.add_argument("--json", type=argparse.FileType("w"))
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.json:
        json.dump(results, arguments.json, indent=2)
    print(table(results))


if __name__ == "__main__":
    main()
