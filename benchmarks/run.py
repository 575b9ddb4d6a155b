#!/usr/bin/env python3
"""A program alone and under `penstock run`: GB/s of its copies, the bytes of each compared.

    run.py --json run.json > run.md
    run.py --penstock build/release/penstock --only "to(cuda)" --repetitions 5
    run.py --quick --device cpu

Two processes, one of them under `penstock run`, do the same works in turn: while one measures, the other waits. A
figure is the median of the repetitions, after two that warm up. A row comes as soon as its work is done. What is not
installed is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

MIB = 1 << 20


@dataclasses.dataclass
class Work:
    """Something to measure: `act` is timed, and gives what `check` looks at."""

    name: str
    size: int
    act: Callable[[], Any]
    check: Callable[[Any], bool]
    prepare: Callable[[], Any] = lambda: None
    warm_ups: int = 2


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--penstock", default="penstock", help="the command")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", default="", help="works whose names have this")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--report", help="write what penstock run says here")
    parser.add_argument("--folder", help="for the checkpoint; default: a temporary one")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


@functools.cache
def block() -> Any:
    import torch

    return torch.empty(8 * MIB, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(1)).view(torch.uint8)


def some_bytes(size: int, number: int = 0) -> Any:
    """Random ones, repeated; the first are the number's."""
    data = block()[:size].clone() if size <= block().nbytes else block().repeat(-(-size // block().nbytes))[:size]
    data[:2] = data.new_tensor([number % 256, number // 256])
    return data


def single_copies(device: str, scale: int) -> Iterator[Work]:
    """`.to`, `torch.tensor` and `.cpu` of one tensor."""
    import torch

    for mebibytes, times in ((0.25, 100), (1, 100), (4, 40), (16, 20), (37, 10), (64, 10), (256, 3), (1024, 1)):
        data = some_bytes(int(mebibytes * MIB) // scale)
        pinned = data.pin_memory().to(device) if device == "cuda" else data
        yield Work(
            f"x.to(cuda), {mebibytes} MiB",
            data.nbytes * times,
            lambda data=data, times=times: [data.to(device) for _ in range(times)],
            lambda result, pinned=pinned: all(torch.equal(one, pinned) for one in result),
        )
    array = some_bytes(256 * MIB // scale).numpy()
    yield Work(
        "torch.tensor(numpy, device=cuda), 256 MiB",
        array.nbytes,
        lambda: torch.tensor(array, device=device),
        lambda result: torch.equal(result.cpu(), torch.from_numpy(array)),
    )
    for mebibytes in (4, 64, 256, 1024):
        data = some_bytes(mebibytes * MIB // scale)
        on_device = data.to(device)
        yield Work(
            f"g.cpu(), {mebibytes} MiB",
            data.nbytes,
            lambda on_device=on_device: on_device.cpu(),
            lambda result, data=data: torch.equal(result, data),
        )


def many_copies(device: str, scale: int) -> Iterator[Work]:
    """State dicts and a module."""
    import torch

    for count, mebibytes in ((24, 64), (2000, 1)):
        state = {f"layer{i}": some_bytes(mebibytes * MIB // scale, i) for i in range(count)}
        yield Work(
            f"state dict of {count} x {mebibytes} MiB",
            count * mebibytes * MIB // scale,
            lambda state=state: {name: value.to(device) for name, value in state.items()},
            lambda result, state=state: all(torch.equal(result[name].cpu(), value) for name, value in state.items()),
        )
    width = 2048 if scale == 1 else 64
    module = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(100)))
    kept = [value.clone() for value in module.state_dict().values()]
    size = sum(value.nbytes for value in kept)

    def is_same(result: Any) -> bool:
        values = result.state_dict().values()
        return all(torch.equal(value.cpu(), copy) for value, copy in zip(values, kept, strict=True))

    def to(where: str) -> Callable[[], Any]:
        return lambda: module.to(where)

    yield Work("module.to(cuda), 100 x 16 MiB", size, to(device), is_same, to("cpu"))
    yield Work("module.to(cpu), 100 x 16 MiB", size, to("cpu"), is_same, to(device))


def checkpoints(device: str, scale: int, folder: pathlib.Path) -> Iterator[Work]:
    import torch

    file = folder / "checkpoint.pt"
    state = {f"layer{i}": some_bytes(64 * MIB // scale, i) for i in range(60)}
    if not file.exists():
        torch.save(state, file)
    size = sum(value.nbytes for value in state.values())

    def is_same(result: Any) -> bool:
        return all(torch.equal(result[name].cpu(), value) for name, value in state.items())

    yield Work(
        "torch.load(map_location=cuda), 4 GB", size, lambda: torch.load(file, map_location=device), is_same, warm_ups=1
    )
    try:
        import penstock
    except ImportError:
        return
    yield Work(
        "penstock.to_device of the same",
        size,
        lambda: penstock.to_device(torch.load(file), device),
        is_same,
        warm_ups=1,
    )


def other_frameworks(scale: int) -> Iterator[Work]:
    import numpy

    array = some_bytes(256 * MIB // scale).numpy()
    try:
        import cupy
    except ImportError:
        pass
    else:
        yield Work(
            "cupy.asarray, 256 MiB",
            array.nbytes,
            lambda: cupy.asarray(array),
            lambda result: bool((cupy.asnumpy(result) == array).all()),
        )
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        return
    yield Work(
        "jax.device_put, 256 MiB",
        array.nbytes,
        lambda: jax.block_until_ready(jax.device_put(array)),
        lambda result: bool((numpy.asarray(result) == array).all()),
    )


def steps(device: str) -> Iterator[Work]:
    """A program without large copies, whose figure is steps a second."""
    import torch

    data = torch.ones(1 << 16, device=device)

    def run() -> None:
        for _ in range(200 * 60):
            data.mul_(1.0)

    yield Work("steps of 60 kernels, a second", 200 * 10**9, run, lambda _: True)


def measure(work: Work, repetitions: int, synchronize: Callable[[], None]) -> list[float]:
    seconds = []
    for repetition in range(work.warm_ups + repetitions):
        work.prepare()
        synchronize()
        begin = time.perf_counter()
        result = work.act()
        synchronize()
        seconds.append(time.perf_counter() - begin)
        if repetition == work.warm_ups + repetitions - 1 and not work.check(result):
            sys.exit(f"run.py: {work.name} brought other bytes")
        del result
    return seconds[work.warm_ups :]


def works(arguments: argparse.Namespace) -> Iterator[Work]:
    device, scale = arguments.device, 64 if arguments.quick else 1
    yield from single_copies(device, scale)
    yield from many_copies(device, scale)
    yield from other_frameworks(scale)
    yield from steps(device)
    yield from checkpoints(device, scale, pathlib.Path(arguments.folder))  # the last, as it takes longest


def work_through(arguments: argparse.Namespace) -> None:
    """What runs alone and under penstock: for each line of standard input, does a work and prints a line about it."""
    import torch

    synchronize = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    chosen = (work for work in works(arguments) if arguments.only in work.name)
    for _ in sys.stdin:
        work = next(chosen, None)
        if work is None:
            return
        seconds = measure(work, arguments.repetitions, synchronize)
        line = {"name": work.name, "size": work.size, "seconds": statistics.median(seconds)}
        print(json.dumps(line), flush=True)


def next_line(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    process.stdin.write("go\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line else None


def compare(arguments: argparse.Namespace) -> None:
    report = arguments.report or str(pathlib.Path(arguments.folder) / "report.json")
    words = [sys.executable, __file__, *sys.argv[1:], "--work", "--folder", arguments.folder]
    prefixes = [[], [arguments.penstock, "run", "--json", report, "--"]]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen([*prefix, *words], stdin=pipe, stdout=pipe, text=True) for prefix in prefixes]
    print("| work | alone, GB/s | under penstock run | times |\n| --- | --- | --- | --- |", flush=True)
    rows: list[dict[str, Any]] = []

    def write(**more: Any) -> None:
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps({"rows": rows, **more}, indent=1))

    while all(lines := [next_line(process) for process in processes]):
        alone, run = (line["size"] / line["seconds"] / 1e9 for line in lines)
        rows.append({"work": lines[0]["name"], "alone_gbps": alone, "run_gbps": run})
        print(f"| {lines[0]['name']} | {alone:.3g} | {run:.3g} | {run / alone:.2f} |", flush=True)
        write()  # also if a later one does not end
    for process in processes:
        process.stdin.close()
    if any([process.wait() for process in processes]):
        sys.exit(1)
    write(report=json.loads(pathlib.Path(report).read_text()))


def main() -> None:
    arguments = parse()
    if arguments.work:
        work_through(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
        arguments.folder = arguments.folder or folder
        compare(arguments)


if __name__ == "__main__":
    main()
