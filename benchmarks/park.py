#!/usr/bin/env python3
"""State that leaves a GPU and comes back: penstock.park, resume and swap beside the usual ways.

    park.py --weights-gb 8 --json park.json > park.md
    park.py --only loop relayed --loop-billions 1 7

A random transformer in bfloat16 with its Adam state, which is twice as large. Each part makes its own tensors; those
that are slow move `--baseline-gb` of them. Times are the host's, from an idle GPU to an idle GPU: medians, but those of
a first trip, which pins the memory. After each trip the bytes are compared by sums over all words and over their
places. A part that fails costs its own figures only. torch_memory_saver and the pinning of memory alone run in
processes of their own. The table goes to standard output as Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import penstock

GIB = 1 << 30


class NotMeasured(Exception):
    """What a part needs is not here."""


def transformer(gigabytes: float, device: str, wide: int) -> torch.nn.Module:
    """Layers of 12 x wide^2 random weights in bfloat16, with the small tensors that layers have."""
    shapes = [(wide, wide)] * 4 + [(4 * wide, wide), (wide, 4 * wide), (wide,), (wide,)]
    return torch.nn.ModuleList(
        torch.nn.ParameterList(torch.randn(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
        for _ in range(max(1, round(gigabytes * 1e9 / (24 * wide * wide))))
    )


def forward(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Uses each weight once, as a transformer does for each token. A gate stands in for attention."""
    work = torch.nn.functional
    for query, key, value, out, up, down, first, second in module:
        h = work.rms_norm(x, x.shape[-1:], first)
        gate = torch.sigmoid(work.linear(h, query) * work.linear(h, key))
        x = x + work.rms_norm(work.linear(gate * work.linear(h, value), out), x.shape[-1:])
        h = work.linear(work.rms_norm(x, x.shape[-1:], second), up)
        x = x + work.rms_norm(work.linear(work.silu(h), down), x.shape[-1:])
    return x


def with_adam(module: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a module after a step, without gradients."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0, foreach=False)  # which takes the least memory
    for parameter in module.parameters():
        moments = {name: torch.rand_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    return optimizer


def tensors_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return [*module.parameters(), *moments]


def sums(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Of each tensor: the sum of its words, and that of rows of words times their number."""
    found = []
    for tensor in tensors:
        rows = tensor.detach().view(torch.int16).view(-1, 64).sum(1)
        found.append(torch.stack((rows.sum(), (rows * torch.arange(len(rows), device=rows.device)).sum())))
    return [tuple(pair) for pair in torch.stack(found).tolist()]


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
        raise RuntimeError("other bytes came back")


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


def some_state(arguments: argparse.Namespace) -> list[torch.Tensor]:
    """Tensors of `--baseline-gb`, for the ways that are slow."""
    module = transformer(arguments.baseline_gb / 3, arguments.device, arguments.hidden)
    return tensors_of(module, with_adam(module))


def raw_copy(arguments: argparse.Namespace) -> dict[str, Any]:
    """One copy of 1 GiB between pinned and device memory: the ceiling of this link."""
    there = torch.randn(GIB // 4, device=arguments.device)
    pinned = torch.empty(GIB // 4, pin_memory=torch.cuda.is_available())
    ways = (lambda: pinned.copy_(there, non_blocking=True), lambda: there.copy_(pinned, non_blocking=True))
    trips([there], *ways)
    return {"raw pinned copy": trips([there], *ways, arguments.repetitions)}


def parked(ways: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    module = transformer(arguments.weights_gb, arguments.device, arguments.hidden)
    optimizer = with_adam(module)
    tensors = tensors_of(module, optimizer)
    state = penstock.Parked([module, optimizer])
    ways["penstock, first"] = trips(tensors, state.park, state.resume)
    ways["penstock, later"] = trips(tensors, state.park, state.resume, arguments.repetitions)
    stats = state.stats()
    return {"held": stats.host_bytes / max(1, stats.bytes), "stats": stats.as_dict()}


def pinning(arguments: argparse.Namespace) -> dict[str, Any]:
    """The pinned memory of a park of `--weights-gb`, made without copies; in a process of its own."""
    from penstock._engines import engine_for
    from penstock._move import parts

    blocks = []
    for _ in range(max(1, round(arguments.weights_gb * 1e9 / (256 << 20)))):
        blocks.append(parts.Part(engine_for(arguments.device), parts.PINNED))
        blocks[-1].host_bytes = 256 << 20
    engine_for(arguments.device).pinned_memory()
    took = seconds(lambda: list(parts.with_blocks(blocks)))
    return {"pinned memory alone": {"down_s": took, "down_gbps": len(blocks) * (256 << 20) / took / 1e9}}


def give_back(tensors: list[torch.Tensor]) -> None:
    synchronize()
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)


def take(tensors: list[torch.Tensor], saved: list[torch.Tensor], non_blocking: bool = True) -> None:
    with torch.no_grad():
        for tensor, copy in zip(tensors, saved, strict=True):
            tensor.untyped_storage().resize_(copy.nbytes)
            tensor.copy_(copy, non_blocking=non_blocking)


def to_cpu(arguments: argparse.Namespace) -> dict[str, Any]:
    """`.to("cpu")` of each tensor."""
    tensors, copies = some_state(arguments), []

    def down() -> None:
        copies[:] = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        give_back(tensors)

    return {".to('cpu')": trips(tensors, down, lambda: take(tensors, copies))}


def pinned_copies(arguments: argparse.Namespace) -> dict[str, Any]:
    """A pinned buffer for each tensor, which is kept."""
    tensors, copies = some_state(arguments), []

    def pin() -> None:
        copies[:] = [torch.empty_like(t, device="cpu", pin_memory=torch.cuda.is_available()) for t in tensors]
        down()

    def down() -> None:
        with torch.no_grad():
            for tensor, saved in zip(tensors, copies, strict=True):
                saved.copy_(tensor, non_blocking=True)
        give_back(tensors)

    def up() -> None:
        take(tensors, copies)

    return {
        "pinned copies, first": trips(tensors, pin, up),
        "pinned copies, later": trips(tensors, down, up, arguments.repetitions),
    }


def vllm_loop(arguments: argparse.Namespace) -> dict[str, Any]:
    """As vLLM's sleep mode of level 1: one after another into new pinned tensors, which go after the wake-up."""
    tensors, copies = some_state(arguments), []

    def down() -> None:
        for tensor in tensors:
            saved = torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available(), requires_grad=False)
            saved.copy_(tensor.detach())
            tensor.untyped_storage().resize_(0)
            copies.append(saved)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def up() -> None:
        take(tensors, copies, non_blocking=False)
        copies.clear()

    return {
        "vLLM's loop, first": trips(tensors, down, up),
        "vLLM's loop, later": trips(tensors, down, up, arguments.repetitions),
    }


def memory_saver(arguments: argparse.Namespace, keeps: bool = False) -> dict[str, Any]:
    """torch_memory_saver, by PyTorch's memory pools: its hook by LD_PRELOAD takes the same copies."""
    from torch_memory_saver import torch_memory_saver

    torch_memory_saver.hook_mode = "torch"
    if keeps:
        torch_memory_saver.retain_cpu_backup = True
    with torch_memory_saver.region(enable_cpu_backup=True):
        tensors = some_state(arguments)
    both = (torch_memory_saver.pause, torch_memory_saver.resume)
    return {
        "torch_memory_saver, first": trips(tensors, *both),
        "torch_memory_saver, later": trips(tensors, *both, arguments.repetitions),
    }


def memory_saver_that_keeps(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same with its pinned memory kept from trip to trip."""
    ways = memory_saver(arguments, keeps=True)
    return {"torch_memory_saver, later, backup kept": ways["torch_memory_saver, later"]}


def base_and_adapter(skip: str, arguments: argparse.Namespace) -> dict[str, float]:
    """A frozen base, and 1 % of it that is trained: the whole, and again after the 1 % was written."""
    gigabytes, device = arguments.weights_gb, arguments.device
    base = transformer(gigabytes, device, arguments.hidden).requires_grad_(False)
    adapter = transformer(gigabytes / 100, device, arguments.hidden // 8)
    before = sums(list(base.parameters()))
    penstock.park([base, adapter]).resume()  # pins the memory
    state, times = penstock.Parked([base, adapter], skip=skip), []
    for _ in range(arguments.repetitions + 1):
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.add_(1)
        times.append(seconds(state.park))
        state.resume()
        verify(list(base.parameters()), before)
    again = statistics.median(times[1:])
    return {"whole_s": times[0], "again_s": again, "times": times[0] / again, **state.stats().skipped}


def frozen(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"frozen": base_and_adapter("frozen", arguments)}


def unchanged(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"unchanged": base_and_adapter("unchanged", arguments)}


def swaps(arguments: argparse.Namespace) -> dict[str, Any]:
    """Two models in turn, beside a park of one."""
    models, before, states = [], [], []
    for _ in range(2):
        models.append(transformer(arguments.weights_gb, arguments.device, arguments.hidden))
        before.append(sums(list(models[-1].parameters())))
        states.append(penstock.park(models[-1]))
    one_way, both = [], []
    for _ in range(arguments.repetitions):
        states[0].resume()
        one_way.append(seconds(states[0].park))
    states[0].resume()
    for turn in range(2 * arguments.repetitions):
        there, other = turn % 2, 1 - turn % 2
        both.append(seconds(lambda there=there, other=other: penstock.swap(states[there], states[other])))
        verify(list(models[other].parameters()), before[other])
    swap_s, one_way_s = statistics.median(both), statistics.median(one_way)
    return {"swap": {"one_way_s": one_way_s, "swap_s": swap_s, "times": swap_s / one_way_s}}


class OwnTrips:
    """Of a trainer and a generator, by penstock."""

    def __init__(self, trainer: list[Any], generator: torch.nn.Module) -> None:
        self._trainer, self._generator = penstock.park(trainer), penstock.Parked(generator)

    def to_trainer(self) -> None:
        penstock.swap(self._generator, self._trainer)

    def to_generator(self) -> None:
        penstock.swap(self._trainer, self._generator)


class TripsByHand:
    """Of a trainer and a generator, as training frameworks write them: `.to()` of each tensor."""

    def __init__(self, trainer: list[Any], generator: torch.nn.Module) -> None:
        (self._model, self._optimizer), self._generator = trainer, generator
        self._device = next(generator.parameters()).device
        self._move_trainer("cpu")

    def to_trainer(self) -> None:
        self._generator.to("cpu")
        self._move_trainer(self._device)

    def to_generator(self) -> None:
        self._move_trainer("cpu")
        self._generator.to(self._device)

    def _move_trainer(self, device: Any) -> None:
        self._model.to(device)
        for state in self._optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].to(device, non_blocking=True)
        synchronize()


LOOPS = {"penstock": OwnTrips, "by hand": TripsByHand}


def loop(name: str, way: Any, billions: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """A generator and a trainer take turns: generate, park, train, resume. Medians of the steps after the first."""
    model = transformer(2 * billions, arguments.device, arguments.hidden)
    optimizer = with_adam(model)
    generator = transformer(2 * billions, arguments.device, arguments.hidden)
    sent, trained = sums(list(generator.parameters())), sums(tensors_of(model, optimizer))
    moves = way([model, optimizer], generator)

    def batch(tokens: int) -> torch.Tensor:
        return torch.randn(tokens, arguments.hidden, dtype=torch.bfloat16, device=arguments.device)

    def generate() -> None:
        with torch.no_grad():
            x = batch(64)
            for _ in range(arguments.loop_tokens):
                x = forward(generator, x)

    def train() -> None:
        forward(model, batch(64 * arguments.loop_tokens)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    moved, whole = [], []
    for _ in range(arguments.loop_steps + 1):
        computed = seconds(generate)
        there = seconds(moves.to_trainer)
        verify(tensors_of(model, optimizer), trained)
        computed += seconds(train)
        trained = sums(tensors_of(model, optimizer))
        back = seconds(moves.to_generator)
        verify(list(generator.parameters()), sent)
        moved.append(there + back)
        whole.append(computed + there + back)
    moved_s, step_s = (statistics.median(each[1:]) for each in (moved, whole))
    return {name: {"moved_s": moved_s, "step_s": step_s, "share": moved_s / step_s}}


def relayed(arguments: argparse.Namespace) -> dict[str, Any]:
    """A resume over the links of two GPUs beside one."""
    if torch.cuda.device_count() < 2:
        raise NotMeasured("it needs two GPUs")
    tensors = list(transformer(arguments.weights_gb, "cuda:0", arguments.hidden).parameters())
    state, before = penstock.Parked(tensors), sums(tensors)
    rates: dict[str, float] = {}
    for name, relay in (("one link", None), ("both links", ["cuda:1"])):
        times = []
        for _ in range(arguments.repetitions + 1):
            state.park()
            times.append(seconds(lambda relay=relay: state.resume(relay=relay)))
            verify(tensors, before)
        rates[name] = bytes_of(tensors) / statistics.median(times[1:]) / 1e9
    return {"relayed": {"gbps": rates, "times": rates["both links"] / rates["one link"]}}


WAYS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "raw": raw_copy,
    "to_cpu": to_cpu,
    "pinned": pinned_copies,
    "vllm": vllm_loop,
}
# Each in a process of its own, with what has to be importable there.
APART: dict[str, tuple[Callable[[argparse.Namespace], dict[str, Any]], str | None]] = {
    "pinning": (pinning, None),
    "torch_memory_saver": (memory_saver, "torch_memory_saver"),
    "torch_memory_saver_kept": (memory_saver_that_keeps, "torch_memory_saver"),
}
PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "frozen": frozen,
    "unchanged": unchanged,
    "swap": swaps,
    "relayed": relayed,
}


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """What was in it leaves the GPU, and PyTorch's pinned memory, at its end."""
    try:
        yield
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            getattr(torch._C, "_host_emptyCache", lambda: None)()


def run_apart(name: str, needs: str | None, arguments: argparse.Namespace) -> dict[str, Any]:
    if needs is not None and importlib.util.find_spec(needs) is None:
        raise NotMeasured(f"{needs} is not installed")
    options = [f"--{key}={getattr(arguments, key.replace('-', '_'))}" for key in PASSED_ON]
    command = [sys.executable, __file__, "--apart", name, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"its process ended with {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


class Results:
    """What has been measured, and what has failed."""

    def __init__(self, only: list[str]) -> None:
        self._only = only
        self.found: dict[str, Any] = {"ways": {}, "failed": {}}

    def add(self, name: str, into: dict[str, Any], measured: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        """Adds figures to a table unless it fails or is not wanted."""
        if self._only and name not in self._only:
            return
        began = time.perf_counter()
        try:
            with cleared():
                into.update(measured(*arguments))
        except NotMeasured as why:
            print(f"{name}: not measured, {why}", file=sys.stderr)
        except Exception as error:
            self.found["failed"][name] = f"{type(error).__name__}: {error}".split("\n")[0]
            print(f"{name}: {self.found['failed'][name]}", file=sys.stderr)
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    results = Results(arguments.only)
    ways = results.found["ways"]
    results.add("park", results.found, parked, ways, arguments)
    for name, way in WAYS.items():
        results.add(name, ways, way, arguments)
    for name, part in PARTS.items():
        results.add(name, results.found, part, arguments)
    for billions in arguments.loop_billions:
        loops = results.found.setdefault("loop", {}).setdefault(f"{billions:g} B", {})
        for name, turns in LOOPS.items():
            results.add("loop", loops, loop, name, turns, billions, arguments)
    for name, (_, needs) in APART.items():
        results.add(name, ways, run_apart, name, needs, arguments)
    return results.found


def table(results: dict[str, Any]) -> str:
    lines = ["| way | down, GB/s | up, GB/s |", "| --- | --- | --- |"]
    for way, row in results["ways"].items():
        up = f"{row['up_gbps']:.1f}" if "up_gbps" in row else ""
        lines.append(f"| {way} | {row['down_gbps']:.1f} | {up} |")
    lines.append("")
    if "held" in results:
        whole = results["stats"]["bytes"] / 1e9
        lines.append(f"{whole:.1f} GB; {results['held']:.3f} bytes held on the host for each.")
    for name in ("frozen", "unchanged"):
        if lora := results.get(name):
            text = f"{lora['whole_s']:.3f} s; again {lora['again_s']:.4f} s, {lora['times']:.0f} x."
            lines.append(f"A base that stays, {name}, and 1 % of it: {text}")
    if swap := results.get("swap"):
        lines.append(
            f"A swap: {swap['swap_s']:.3f} s, {swap['times']:.2f} x one direction ({swap['one_way_s']:.3f} s)."
        )
    for size, loops in results.get("loop", {}).items():
        texts = [f"{name} {its['moved_s']:.3f} of {its['step_s']:.3f} s" for name, its in loops.items()]
        lines.append(f"Generate, park, train, resume with {size}, in trips: {'; '.join(texts) or 'not measured'}.")
    if both := results.get("relayed"):
        texts = [f"{name} {rate:.1f} GB/s" for name, rate in both["gbps"].items()]
        lines.append(f"A resume over {', '.join(texts)}: {both['times']:.2f} x.")
    return "\n".join([*lines, *(f"{name}: {why}" for name, why in results["failed"].items())])


PASSED_ON = ("device", "weights-gb", "baseline-gb", "repetitions", "hidden")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--weights-gb", type=float, default=8.0)
    parser.add_argument("--baseline-gb", type=float, default=3.0)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--loop-billions", type=float, nargs="*", default=[1.0], help="parameters of both models")
    parser.add_argument("--loop-steps", type=int, default=2)
    parser.add_argument("--loop-tokens", type=int, default=64)
    parser.add_argument("--only", nargs="*", choices=["park", *WAYS, *PARTS, "loop", *APART], default=[])
    parser.add_argument("--apart", choices=APART, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=argparse.FileType("w"))
    arguments = parser.parse_args()
    if arguments.apart:
        print(json.dumps(APART[arguments.apart][0](arguments)), flush=True)
        # torch_memory_saver ends a process with 1 if its pool is freed outside of a region, as at Python's end.
        os._exit(0)
    results = measure(arguments)
    if arguments.json:
        json.dump(results, arguments.json, indent=2)
    print(table(results))
    if results["failed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
