#!/usr/bin/env python3
"""Several devices of one process: fed once, and one of them fed over the links of all, beside PyTorch and NCCL.

    groups.py --devices cuda:0 cuda:1 --mib 2048
    groups.py --devices host:0,link=0.5,peer=4 host:1,link=0.5,peer=4 --mib 128 --repetitions 3

A contender counts only after its bytes were compared, on each device, with the host's. Rates are what each receiver
gets: bytes of the transfer, through the median time until all receivers have them, also as a multiple of a plain copy
over one link in the same run. The goals are shares of what plain copies bring over all links at once. A Loader delivers
shuffled epochs of the same bytes: to all, and to the first over the links of all. Then, for a few seconds each, GPUs
all-reduce 1 GiB by NCCL: alone, beside plain copies to the first, and beside relays to it, with the share of the bytes
that each link carried: a relay gives way. For host devices with modelled links, all links are as many times what
to_device brings to the first alone. Prints Markdown. Profiles that `penstock link` has stored are used, as in any
program.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# NVLink multicast is off, so that all-reduces of hosts with and without it compare. NCCL reads this at its start.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

REDUCED_BYTES = 1 << 30
SAMPLE_BYTES = 64 << 10  # of a Loader
EACH = "`.copy_(non_blocking=True)` to each, pinned"
ONE_LINK = "`.copy_(non_blocking=True)` to the first alone, pinned"
ALONE = "to_device, to the first alone, pinned"
LEAST_SHARE_OF_LINKS = 0.95  # of plain copies over all of them
WITH_GOAL = ("to_device(group=), pinned", "to_device(relay=), pinned", "Loader(group=)")
LEAST_SHARE_OF_REDUCE = 0.97  # beside a relay


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", required=True, help="two or more")
    parser.add_argument("--mib", type=int, default=2048, help="of a transfer in MiB, default %(default)s")
    parser.add_argument("--repetitions", type=int, default=9, help="of each measurement, default %(default)s")
    parser.add_argument("--seconds", type=float, default=3, help="of each all-reduce, default %(default)s")
    parser.add_argument("--json", help="write the figures here")
    return parser.parse_args()


class Bench:
    def __init__(self, arguments: argparse.Namespace):
        import torch

        self.torch = torch
        self.arguments = arguments
        self.devices = arguments.devices
        self.on_gpus = self.devices[0].startswith("cuda")
        self.pageable = torch.randint(0, 1 << 62, (arguments.mib << 17,)).view(torch.uint8)
        self.pinned = self.pin(self.pageable)
        self.kept = [torch.empty_like(self.pageable, device=device) for device in self.devices if self.on_gpus]
        self.rates: dict[str, float] = {}
        # The Loaders lock their memory, which is another one's.
        self.samples = self.pageable.clone().view(-1, SAMPLE_BYTES)
        self.epochs = 0
        self.loaders = {
            "Loader(group=)": self.loader(group=self.devices),
            "Loader(relay=)": self.loader(device=self.devices[0], relay=self.devices[1:]),
        }

    def pin(self, tensor: Any) -> Any:
        return tensor.pin_memory() if self.on_gpus else tensor

    def loader(self, **more: Any) -> Any:
        import penstock

        data = (self.samples, self.torch.arange(len(self.samples)))
        return penstock.Loader(data, max(1, min(256, len(self.samples) // 128)), shuffle=True, **more)

    def epoch(self, name: str, compare: bool = False) -> list[Any]:
        """An epoch of a Loader, apart from the last one, so that no batch is read before its turn."""
        self.epochs += 2
        self.loaders[name].set_epoch(self.epochs)
        seen = 0
        for batch in self.loaders[name]:
            for x, number in batch if name == "Loader(group=)" else [batch]:
                if compare and not self.torch.equal(x.cpu(), self.samples[number.cpu()]):
                    sys.exit(f"groups.py: {name}: wrong bytes on {x.device}")
            seen += len(number)
        if compare and seen != len(self.samples):
            sys.exit(f"groups.py: {name}: {seen} samples of {len(self.samples)}")
        return []

    def synchronize(self) -> None:
        for device in self.devices if self.on_gpus else ():
            self.torch.cuda.synchronize(device)

    def copy_to_each(self) -> list[Any]:
        for there in self.kept:
            there.copy_(self.pinned, non_blocking=True)
        return self.kept

    def copy_and_broadcast(self) -> list[Any]:
        self.kept[0].copy_(self.pinned, non_blocking=True)
        self.torch.cuda.nccl.broadcast(self.kept)
        return self.kept

    def copy_to_first(self) -> list[Any]:
        self.kept[0].copy_(self.pinned, non_blocking=True)
        return self.kept[:1]

    def contenders(self) -> dict[str, Callable[[], list[Any]]]:
        import penstock

        first, others = self.devices[0], self.devices[1:]
        plain = {
            EACH: self.copy_to_each,
            "the same to the first, and NCCL's broadcast": self.copy_and_broadcast,
            ONE_LINK: self.copy_to_first,
        }
        return {
            **(plain if self.on_gpus else {}),
            "to_device(group=), pinned": lambda: penstock.to_device(self.pinned, group=self.devices),
            "to_device(group=), pageable": lambda: penstock.to_device(self.pageable, group=self.devices),
            ALONE: lambda: [penstock.to_device(self.pinned, first)],
            "to_device, to the first alone, pageable": lambda: [penstock.to_device(self.pageable, first)],
            "to_device(relay=), pinned": lambda: [penstock.to_device(self.pinned, first, relay=others)],
            "to_device(relay=), pageable": lambda: [penstock.to_device(self.pageable, first, relay=others)],
            **{name: functools.partial(self.epoch, name) for name in self.loaders},
        }

    def beside(self, name: str) -> list[str]:
        """A row's rate as a multiple of one link's, and the goal, each as text."""
        rate, one = self.rates[name], self.rates[ONE_LINK if self.on_gpus else ALONE]
        ratio, links = rate / one, self.rates.get(EACH, one) * len(self.devices) / one
        goal = LEAST_SHARE_OF_LINKS * links if name in WITH_GOAL else 0
        met = "" if not goal else f"{goal:.2f}: {'met' if ratio >= goal else 'not met'}"
        return [f"{ratio:.2f}", met]

    def verify(self, name: str, call: Callable[[], list[Any]]) -> None:
        for there in self.kept:
            there.fill_(0xA5)
        self.synchronize()
        for there in call():
            if not self.torch.equal(there.cpu(), self.pageable):
                sys.exit(f"groups.py: {name}: wrong bytes on {there.device}")

    def race(self) -> None:
        """All contenders, one after the other, in each round."""
        contenders = self.contenders()
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for name, call in contenders.items():
            self.verify(name, call)
        for name in self.loaders:
            self.epoch(name, compare=True)
        for _ in range(self.arguments.repetitions):
            for name, call in contenders.items():
                self.synchronize()
                begin = time.perf_counter()
                there = call()
                self.synchronize()
                seconds[name].append(time.perf_counter() - begin)
                del there
        for name, measured in seconds.items():
            self.rates[name] = self.pageable.nbytes / statistics.median(measured) / 1e9

    def carried(self) -> list[int]:
        """Bytes that each GPU has pulled so far, for itself or for the others of the group."""
        from penstock._engines import engines_of, group_for

        return group_for(engines_of("devices", self.devices)).carried()

    def reduce_for(self, beside: Callable[[], Any] | None) -> tuple[float, float, list[float]]:
        """The bytes that NCCL reduces in a second, and those that `beside` brings meanwhile, in GB/s; and the share of
        the latter that each GPU pulled for the group, none if there was no such transfer."""
        torch = self.torch
        values = [torch.ones(REDUCED_BYTES // 4, device=device) for device in self.devices]
        streams = [torch.cuda.Stream(device) for device in self.devices]
        over = threading.Event()
        calls = 0

        def feed() -> None:
            nonlocal calls
            while beside is not None and not over.is_set():
                beside()
                torch.cuda.current_stream(self.devices[0]).synchronize()  # not the streams that reduce
                calls += 1

        def reduce(times: int) -> None:
            for _ in range(times):
                torch.cuda.nccl.all_reduce(values, streams=streams)
            for stream in streams:
                stream.synchronize()

        reduce(3)
        feeding = threading.Thread(target=feed)
        feeding.start()
        reduce(3)
        carried = self.carried()
        begin, before, times = time.perf_counter(), calls, 0
        while time.perf_counter() - begin < self.arguments.seconds:
            reduce(20)
            times += 20
        seconds, fed = time.perf_counter() - begin, calls - before
        pulled = [after - at_first for after, at_first in zip(self.carried(), carried, strict=True)]
        over.set()
        feeding.join()
        shares = [each / sum(pulled) for each in pulled] if any(pulled) else []
        return times * REDUCED_BYTES / seconds / 1e9, fed * self.pageable.nbytes / seconds / 1e9, shares

    def write(self, reduced: dict[str, Any]) -> None:
        """The figures so far, so that those of transfers are there if an all-reduce fails."""
        if self.arguments.json:
            with open(self.arguments.json, "w") as file:
                json.dump({"devices": self.devices, "gbps": self.rates, "all_reduce": reduced}, file, indent=2)

    def reduce(self) -> dict[str, tuple[float, float, list[float]]]:
        import penstock

        first, others = self.devices[0], self.devices[1:]
        return {
            "alone": self.reduce_for(None),
            "beside `to_device` to the first, pinned": self.reduce_for(lambda: penstock.to_device(self.pinned, first)),
            "beside `to_device(relay=)` to the first, pinned": self.reduce_for(
                lambda: penstock.to_device(self.pinned, first, relay=others)
            ),
            "alone, again": self.reduce_for(None),
        }


def print_reduced(reduced: dict[str, tuple[float, float, list[float]]]) -> None:
    alone = (reduced["alone"][0] + reduced["alone, again"][0]) / 2
    print("\n| all-reduce of 1 GiB | GB/s | of alone | goal | fed meanwhile, GB/s | carried by each link |")
    print("| --- | ---: | ---: | --- | ---: | --- |")
    for name, (rate, fed, shares) in reduced.items():
        goal = ""
        if "relay" in name:
            met = "met" if rate >= LEAST_SHARE_OF_REDUCE * alone else "not met"
            goal = f"{LEAST_SHARE_OF_REDUCE:.0%}: {met}"
        carried = ", ".join(f"{share:.0%}" for share in shares)
        print(f"| {name} | {rate:.1f} | {rate / alone:.1%} | {goal} | {fed:.1f} | {carried} |")


def main() -> int:
    arguments = parse()
    bench = Bench(arguments)
    bench.race()
    print(f"{', '.join(arguments.devices)}: transfers of {arguments.mib} MiB, bytes compared\n")
    print("| work | GB/s of each receiver | x one link | goal |")
    print("| --- | ---: | ---: | --- |")
    for name, rate in bench.rates.items():
        print(f"| {name} | {rate:.1f} | {' | '.join(bench.beside(name))} |", flush=True)
    bench.write({})
    if bench.on_gpus:
        reduced = bench.reduce()
        print_reduced(reduced)
        bench.write(reduced)
    return 0


if __name__ == "__main__":
    sys.exit(main())
