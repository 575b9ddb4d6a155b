#!/usr/bin/env python3
"""Measures common advice about moving PyTorch data to a GPU: the figures of docs/transfer-folklore.md.

    folklore.py --write docs/transfer-folklore.md
    folklore.py --dry-run        every line runs on the CPU with tiny sizes; no figure is taken
    folklore.py --self-check     a dry run, and a check of what it makes

The code that is printed is the code that is measured: each way is a string which is compiled and run. Figures are
medians of repetitions after a warm-up; "returns" is when the host goes on, "done" when the device is finished.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

try:
    import torch
except ImportError:
    sys.exit("folklore: not measured, torch is not installed")

from pretended_cuda import pretended_cuda
from results import write_block

NIL = 0.05  #: a difference of less is about nil


@dataclass
class Figure:
    """One way, measured. Microseconds; `wrong` counts trials with wrong results."""

    code: str
    returns: float = math.nan
    done: float = math.nan
    wrong: int | None = None
    trials: int = 0
    note: str = ""


@dataclass
class Finding:
    """A piece of advice, with its measurements."""

    figures: list[Figure] = field(default_factory=list)
    verdict: str = ""
    failed: str = ""
    key: str = ""
    claim: str = ""


class Lab:
    """The device, and how code is timed on it."""

    def __init__(self, dry: bool, seconds: float):
        self.dry, self.seconds = dry, seconds
        self.device = torch.device("cpu" if dry else "cuda")
        self.has_penstock = importlib.util.find_spec("penstock") is not None

    def size(self, real: int, tiny: int) -> int:
        return tiny if self.dry else real

    def names(self, **more: Any) -> dict[str, Any]:
        """What the measured code may use."""
        return {"torch": torch, "device": self.device, "functional": torch.nn.functional, **more}

    def penstock_way(self, source: str) -> list[str]:
        return [f"y = penstock.to_device({source}, device)"] if self.has_penstock else []

    def time(
        self, code: str, names: dict[str, Any], before: str = "", note: str = "", steps: int = 1, most: int = 25
    ) -> Figure:
        """Runs `before` and then `code`, of which only the latter counts; figures are of one of its `steps`."""
        if "penstock" in code:
            import penstock

            names = {**names, "penstock": penstock, "device": "host" if self.dry else "cuda"}
        run, prepare = compile(code, "<measured>", "exec"), compile(before, "<before>", "exec")
        scope = dict(names)
        returned, done = [], []
        end = time.perf_counter() + self.seconds
        warm_up = 1 if self.dry else 3
        while len(done) < warm_up + 5 or (len(done) < warm_up + most and time.perf_counter() < end):
            exec(prepare, scope)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(steps):
                exec(run, scope)
            middle = time.perf_counter()
            torch.cuda.synchronize()
            last = time.perf_counter()
            returned.append(1e6 * (middle - begin) / steps)
            done.append(1e6 * (last - begin) / steps)
        shown = before + "; # not timed\n" + code if before else code
        return Figure(shown, statistics.median(returned[warm_up:]), statistics.median(done[warm_up:]), note=note)

    def on_device(self, code: str, names: dict[str, Any], steps: int, note: str = "") -> Figure:
        """The device's time of one of `steps`, by events: the host does not wait in between."""
        scope, run = dict(names), compile(code, "<measured>", "exec")
        spans = []
        for k in range(3 if self.dry else 13):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(steps):
                exec(run, scope)
            last.record()
            last.synchronize()
            if k >= 2:
                spans.append(1e3 * first.elapsed_time(last) / steps)
        return Figure(code, done=statistics.median(spans), note=note)

    def count_wrong(self, code: str, names: dict[str, Any], note: str) -> Figure:
        """Runs `code` with another number each time. It must leave that number in all of `y`."""
        run = compile(code, "<measured>", "exec")
        trials = self.size(20, 3)
        wrong = 0
        for number in range(1, trials + 1):
            scope = dict(names)
            scope["pinned"].fill_(number)
            torch.cuda.synchronize()
            exec(run, scope)
            torch.cuda.synchronize()
            wrong += not bool((scope["y"] == number).all())
        return Figure(code, wrong=wrong, trials=trials, note=note)


def gain(slow: float, fast: float) -> str:
    """How a way compares with another that it is to beat."""
    ratio = slow / fast
    if abs(ratio - 1) <= NIL:
        return f"about nil ({ratio:.2f} x)"
    return f"{ratio:.1f} x as fast" if ratio > 1 else f"{1 / ratio:.1f} x slower"


def span(microseconds: float) -> str:
    for unit, factor in (("s", 1e-6), ("ms", 1e-3), ("µs", 1.0)):
        if microseconds * factor >= 1:
            return f"{microseconds * factor:.3g} {unit}"
    return f"{microseconds:.2f} µs"


def rate(size: int, figure: Figure) -> str:
    return f"{size / figure.done / 1e3:.1f} GB/s"


def random_bytes(count: int) -> torch.Tensor:
    return torch.empty((count + 7) // 8, dtype=torch.int64).random_().view(torch.uint8)[:count]


def transfer_once(lab: Lab) -> Finding:
    extent = lab.size(4096, 16)
    x = torch.rand(extent, extent)
    names = lab.names(x=x, x_gpu=x.to(lab.device), w=torch.rand(extent, extent, device=lab.device))
    note = f"{x.nbytes >> 20} MiB of float32"
    resident = lab.time("y = x_gpu @ w", names, note=note)
    moved = lab.time("y = x.to(device) @ w", names)
    twice = lab.time("y = x_gpu * 2", names)
    moved_twice = lab.time("y = x.to(device) * 2", names)
    on_cpu = lab.time("y = x * 2", names, note="on the CPU")
    there = "faster" if moved_twice.done < (1 - NIL) * on_cpu.done else "no faster"
    verdict = (
        f"Kept there, the product is {gain(moved.done, resident.done)} and the multiplication "
        f"{gain(moved_twice.done, twice.done)}. Moved for a single multiplication, the GPU is {there} than the "
        f"CPU ({span(moved_twice.done)} and {span(on_cpu.done)})."
    )
    return Finding([resident, moved, twice, moved_twice, on_cpu], verdict)


def non_blocking_pageable(lab: Lab) -> Finding:
    size, count = lab.size(64 << 20, 1 << 10), lab.size(100, 3)
    names = lab.names(x=random_bytes(size), tensors=[random_bytes(64 << 10) for _ in range(count)])
    plain = lab.time("y = x.to(device)", names, note=f"pageable, {size >> 20} MiB")
    eager = lab.time("y = x.to(device, non_blocking=True)", names)
    each = lab.time("y = [t.to(device) for t in tensors]", names, note=f"pageable, {count} of 64 KiB")
    eager_each = lab.time("y = [t.to(device, non_blocking=True) for t in tensors]", names)
    waits = eager.returns / eager.done
    verdict = (
        f"One large tensor: {gain(plain.done, eager.done)}, and the host is held for {100 * waits:.0f} % of the "
        f"transfer all the same. Many small ones: {gain(each.done, eager_each.done)}."
    )
    return Finding([plain, eager, each, eager_each], verdict)


def pin_inline(lab: Lab) -> Finding:
    figures, parts = [], []
    forget = getattr(torch._C, "_host_emptyCache", None)
    for real in (1 << 20, 64 << 20, 1 << 30):
        size = lab.size(real, 1 << 10)
        names = lab.names(x=random_bytes(size), forget=forget)
        plain = lab.time("y = x.to(device)", names, note=f"pageable, {real >> 20} MiB")
        warm = lab.time("y = x.pin_memory().to(device, non_blocking=True)", names, note="pinned memory cached")
        figures += [plain, warm]
        part = f"{real >> 20} MiB: {gain(plain.done, warm.done)}"
        if forget is not None and not lab.dry:
            code = "y = x.pin_memory().to(device, non_blocking=True)"
            cold = lab.time(code, names, before="forget()", note="pinned memory new", most=5)
            figures.append(cold)
            part += f", {gain(plain.done, cold.done)} if the pinned memory is new"
        parts.append(part)
    return Finding(figures, "Beside `.to()`: " + "; ".join(parts) + ".")


def pinned_ring(lab: Lab) -> Finding:
    size = lab.size(64 << 20, 1 << 10)
    x = random_bytes(size)
    names = lab.names(x=x, pinned=x.pin_memory())
    plain = lab.time("y = x.to(device)", names, note=f"pageable, {size >> 20} MiB")
    inline = lab.time("y = x.pin_memory().to(device, non_blocking=True)", names)
    reused = lab.time("pinned.copy_(x); y = pinned.to(device, non_blocking=True)", names, note="one buffer, reused")
    ready = lab.time("y = pinned.to(device, non_blocking=True)", names, note="if the data is already pinned")
    figures = [plain, inline, reused, ready]
    figures += [lab.time(code, names, note="threads fill pinned slots") for code in lab.penstock_way("x")]
    verdict = (
        f"A reused buffer beside `.to()`: {gain(plain.done, reused.done)}; beside pinning inline: "
        f"{gain(inline.done, reused.done)}. The copy into it takes {span(max(0.0, reused.done - ready.done))} of its "
        f"{span(reused.done)}; data that is already pinned comes at {rate(size, ready)}."
    )
    if len(figures) > 4:
        verdict += f" penstock.to_device: {rate(size, figures[4])} from pageable memory."
    return Finding(figures, verdict)


def small_tensors(lab: Lab) -> Finding:
    count = lab.size(1000, 5)
    tensors = [torch.rand(1024) for _ in range(count)]
    names = lab.names(
        tensors=tensors, pinned=[t.pin_memory() for t in tensors], buffer=torch.stack(tensors).pin_memory()
    )
    each = lab.time("y = [t.to(device) for t in tensors]", names, note=f"{count} of 4 KiB")
    eager = lab.time("y = [t.to(device, non_blocking=True) for t in tensors]", names)
    from_pinned = lab.time("y = [t.to(device, non_blocking=True) for t in pinned]", names, note="each pinned before")
    stacked = lab.time("y = torch.stack(tensors).to(device).unbind()", names)
    packed = lab.time(
        "torch.stack(tensors, out=buffer); y = buffer.to(device, non_blocking=True).unbind()",
        names,
        note="into a pinned buffer, reused",
    )
    figures = [each, eager, from_pinned, stacked, packed]
    figures += [lab.time(code, names) for code in lab.penstock_way("tensors")]
    best = min(figures, key=lambda figure: figure.done)
    verdict = (
        f"One by one costs {span(each.done / count)} a tensor; `non_blocking` is {gain(each.done, eager.done)}, "
        f"pinning each {gain(each.done, from_pinned.done)}, stacking first {gain(each.done, stacked.done)}. "
        f"The best here is `{best.code.splitlines()[-1]}`: {gain(each.done, best.done)}."
    )
    return Finding(figures, verdict)


def convert_where(lab: Lab) -> Finding:
    size = lab.size(64 << 20, 1 << 10)
    x = random_bytes(size)
    names = lab.names(x=x, pinned=x.pin_memory(), wide=torch.rand(size // 8, dtype=torch.float64))
    together = lab.time("y = x.to(device, torch.float32)", names, note=f"{size >> 20} MiB of uint8")
    apart = lab.time("y = x.to(device).to(torch.float32)", names)
    eager = lab.time("y = x.to(device, torch.float32, non_blocking=True)", names)
    pinned = lab.time("y = pinned.to(device, non_blocking=True).to(torch.float32)", names)
    narrow = lab.time("y = wide.to(device, torch.float32)", names, note=f"{size >> 20} MiB of float64")
    narrow_apart = lab.time("y = wide.to(device).to(torch.float32)", names)
    verdict = (
        f"Widening: first `.to(device)`, then the dtype: {gain(together.done, apart.done)}; from pinned memory "
        f"{gain(together.done, pinned.done)}; `non_blocking=True` alone, which converts on the GPU too: "
        f"{gain(together.done, eager.done)}. Narrowing from float64: first `.to(device)`: "
        f"{gain(narrow.done, narrow_apart.done)}."
    )
    return Finding([together, apart, eager, pinned, narrow, narrow_apart], verdict)


SIDE = "with torch.cuda.stream(side):\n"
TO_DEVICE = "x = pinned.to(device, non_blocking=True)\n"
WAIT = "torch.cuda.current_stream().wait_stream(side)\n"
SLEEP = "torch.cuda._sleep(delay)\n"
# What may go wrong, the same made right; the code; the line that the second one has in place of {wait}.
RACES = [
    (
        ("read without a wait", "read after wait_stream"),
        SIDE + "    " + SLEEP + "    " + TO_DEVICE + "{wait}y = x + 0",
        WAIT,
    ),
    (
        ("freed while it is read, no record_stream", "the same with record_stream"),
        SIDE
        + "    "
        + TO_DEVICE
        + WAIT
        + "{wait}"
        + SLEEP
        + "y = x + 0\ndel x\n"
        + SIDE
        + "    z = other.to(device, non_blocking=True)",
        "x.record_stream(torch.cuda.current_stream())\n",
    ),
    (
        ("pinned source changed at once", "pinned source changed after an event"),
        SLEEP + "y = pinned.to(device, non_blocking=True)\n{wait}pinned.fill_(-7)",
        "torch.cuda.current_stream().record_event().synchronize()\n",
    ),
    (
        ("result read on the host without a wait", "result read on the host after synchronize"),
        TO_DEVICE + "back.fill_(-7)\n" + SLEEP + "back.copy_(x, non_blocking=True)\n{wait}y = back.clone()",
        "torch.cuda.synchronize()\n",
    ),
]


def side_stream(lab: Lab) -> Finding:
    count = lab.size(1 << 20, 64)
    pinned = torch.zeros(count, dtype=torch.int32).pin_memory()
    extent = lab.size(4096, 16)
    kind = torch.float32 if lab.dry else torch.bfloat16
    names = lab.names(
        pinned=pinned,
        other=torch.full_like(pinned, -7).pin_memory(),
        back=torch.zeros_like(pinned).pin_memory(),
        side=torch.cuda.Stream(),
        delay=5_000_000,
        a=torch.rand(extent, extent, device=lab.device, dtype=kind),
        batch=random_bytes(lab.size(64 << 20, 1 << 10)).pin_memory(),
    )
    figures = [
        lab.count_wrong(code.format(wait=line), names, note)
        for notes, code, wait in RACES
        for note, line in zip(notes, ("", wait), strict=True)
    ]
    (wrong, of), (safe, safe_of) = (
        (sum(figure.wrong for figure in some), sum(figure.trials for figure in some))
        for some in (figures[::2], figures[1::2])
    )
    compute = "for _ in range(8): a @ a"
    alone = lab.on_device(compute, names, 10, note="compute alone")
    same = lab.on_device(f"x = batch.to(device, non_blocking=True)\n{compute}", names, 10, note="one stream")
    beside = lab.on_device(
        "with torch.cuda.stream(side):\n    x = batch.to(device, non_blocking=True)\n"
        f"{compute}\ntorch.cuda.current_stream().wait_stream(side)\nside.wait_stream(torch.cuda.current_stream())",
        names,
        10,
        note="a side stream",
    )
    verdict = (
        f"Overlap: a step takes {span(same.done)} on one stream and {span(beside.done)} with a side stream "
        f"({gain(same.done, beside.done)}; the compute alone {span(alone.done)}). Wrong results if a wait is "
        f"missing: {wrong} of {of} trials; with the right wait: {safe} of {safe_of}."
    )
    return Finding([*figures, alone, same, beside], verdict)


def pre_transferred(lab: Lab) -> Finding:
    count, batch = lab.size(4096, 8), lab.size(256, 2)
    data = random_bytes(count * 3 * 224 * 224).view(count, 3, 224, 224)
    index = torch.randperm(count)[:batch]
    names = lab.names(data=data, index=index, data_gpu=data.to(lab.device), index_gpu=index.to(lab.device))
    upload = lab.time("y = data.to(device)", names, note=f"once, {data.nbytes / 2**20:.0f} MiB", most=3)
    moved = lab.time("y = data[index].to(device)", names, note=f"a batch of {batch}")
    pinned = lab.time("y = data[index].pin_memory().to(device, non_blocking=True)", names)
    resident = lab.time("y = data_gpu[index_gpu]", names)
    ahead = lab.time("y = data_gpu[index.to(device, non_blocking=True)]", names, note="indices from the host")
    saved = min(moved.done, pinned.done) - ahead.done
    pays = f"after {math.ceil(upload.done / saved)} batches" if saved > 0 else "never"
    verdict = (
        f"A batch from device memory is {gain(min(moved.done, pinned.done), ahead.done)}; the upload, even by "
        f"`.to()`, pays {pays}, an epoch being {count // batch}."
    )
    return Finding([upload, moved, pinned, resident, ahead], verdict)


SMALL_STEP = (
    "loss = functional.cross_entropy(model(x), t)\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()\ntotal += "
)


def item_every_step(lab: Lab) -> Finding:
    model = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(lab.device)
    extent = lab.size(8192, 16)
    kind = torch.float32 if lab.dry else torch.bfloat16
    names = lab.names(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        x=torch.rand(128, 784, device=lab.device),
        t=torch.zeros(128, dtype=torch.int64, device=lab.device),
        total=torch.zeros((), device=lab.device),
        a=torch.rand(extent, extent, device=lab.device, dtype=kind),
    )
    steps = lab.size(100, 3)
    small_item = lab.time(SMALL_STEP + "loss.item()", names, steps=steps, note="a small model, batches of 128", most=9)
    small_kept = lab.time(SMALL_STEP + "loss.detach()", names, steps=steps, most=9)
    large = "for _ in range(5): loss = (a @ a)[0, 0]\ntotal += "
    large_item = lab.time(large + "loss.item()", names, steps=10, note="a step of large products", most=9)
    large_kept = lab.time(large + "loss.detach()", names, steps=10, most=9)
    verdict = (
        f"Small steps: without it {gain(small_item.done, small_kept.done)} "
        f"({span(small_item.done)} and {span(small_kept.done)} a step). Steps of {span(large_kept.done)}: "
        f"{gain(large_item.done, large_kept.done)}."
    )
    return Finding([small_item, small_kept, large_item, large_kept], verdict)


ADVICE: dict[str, tuple[str, Callable[[Lab], Finding]]] = {
    "once": ("Move data to the GPU once and keep it there", transfer_once),
    "non-blocking": ("Pass non_blocking=True", non_blocking_pageable),
    "pin-inline": ("Call pin_memory() before to()", pin_inline),
    "ring": ("Reuse pinned buffers", pinned_ring),
    "small": ("Many small tensors: one transfer", small_tensors),
    "dtype": ("Convert on the GPU, not on the way", convert_where),
    "side-stream": ("Copy on a side stream", side_stream),
    "resident": ("Put the whole dataset on the GPU", pre_transferred),
    "item": ("No .item() in every step", item_every_step),
}


def measure(lab: Lab, only: Iterable[str]) -> list[Finding]:
    findings = []
    for key in only:
        claim, take = ADVICE[key]
        try:
            finding = take(lab)
        except Exception as error:
            if lab.dry:
                raise
            finding = Finding(failed=f"{type(error).__name__}: {error}")
        finding.key, finding.claim = key, claim
        if lab.dry:
            finding.verdict = "not taken: a dry run"
            for figure in finding.figures:
                figure.returns = figure.done = math.nan
                figure.wrong = None
        findings.append(finding)
        print(f"{key}: {finding.failed or finding.verdict}", file=sys.stderr, flush=True)
        if not lab.dry:
            torch.cuda.empty_cache()
    return findings


def rows(finding: Finding) -> list[str]:
    """The Markdown of one finding."""
    if finding.failed:
        return [f"Not measured: {finding.failed}"]
    lines = ["| measured | returns after | done after |", "| --- | --- | --- |"]
    for figure in finding.figures:
        code = "<br>".join(f"`{line}`" for line in figure.code.splitlines())
        if figure.trials:
            taken = "not taken" if figure.wrong is None else f"wrong in {figure.wrong} of {figure.trials} trials"
            times = f"| {taken} | |"
        else:
            cells = ["" if math.isnan(v) else span(v) for v in (figure.returns, figure.done)]
            times = "| not taken | not taken |" if math.isnan(figure.done) else f"| {cells[0]} | {cells[1]} |"
        note = f"{figure.note}:<br>" if figure.note else ""
        lines.append(f"| {note}{code} {times}")
    return [*lines, "", f"**{finding.verdict}**"]


def markdown(findings: list[Finding], about: str) -> str:
    parts = [about, ""]
    for finding in findings:
        parts += [f"## {finding.claim}", "", *rows(finding), ""]
    return "\n".join(parts)


def write_page(page: pathlib.Path, findings: list[Finding], about: str) -> None:
    text = write_block(page.read_text(), "figures", "about", [about])
    for finding in findings:
        text = write_block(text, "figures", finding.key, rows(finding))
    page.write_text(text)


def self_check(findings: list[Finding], about: str) -> None:
    """Checks the result of a dry run, apart from figures."""
    assert [finding.key for finding in findings] == list(ADVICE)
    assert all(finding.figures and finding.verdict.startswith("not taken") for finding in findings)
    text = markdown(findings, about)
    for finding in findings:
        assert finding.claim in text
        for figure in finding.figures:
            assert figure.code.splitlines()[-1] in text
            assert math.isnan(figure.done) and figure.wrong is None
    page = "before\n" + "\n".join(f"<!-- figures: {key} -->\nold\n<!-- /figures -->\nkept" for key in ADVICE)
    for finding in findings:
        page = write_block(page, "figures", finding.key, rows(finding))
    assert "old" not in page and page.count("kept") == len(ADVICE) and page.startswith("before\n")
    for finding in findings:
        assert write_block(page, "figures", finding.key, rows(finding)) == page
    real = (pathlib.Path(__file__).parent.parent / "docs" / "transfer-folklore.md").read_text()
    for key in ("about", *ADVICE):
        write_block(real, "figures", key, [])
    assert all(f"## {claim}" in real for claim, _ in ADVICE.values())
    assert gain(100, 101).startswith("about nil") and gain(200, 100) == "2.0 x as fast"
    assert gain(100, 300) == "3.0 x slower" and span(1500) == "1.5 ms" and span(0.25) == "0.25 µs"
    print("self check passed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ADVICE), help=f"of {', '.join(ADVICE)}")
    parser.add_argument("--seconds", type=float, default=1.0, help="most time for one figure")
    parser.add_argument("--write", help="write the figures into this page's marked blocks")
    parser.add_argument("--dry-run", action="store_true", help="run all code on the CPU, take no figures")
    parser.add_argument("--self-check", action="store_true", help="a dry run, checked")
    arguments = parser.parse_args()
    dry = arguments.dry_run or arguments.self_check
    only = list(ADVICE) if arguments.self_check else arguments.only.split(",")
    if set(only) - ADVICE.keys():
        parser.error(f"there are {', '.join(ADVICE)}")
    if not dry and not torch.cuda.is_available():
        sys.exit("folklore: not measured, PyTorch sees no GPU (--dry-run runs the code without)")
    if dry and arguments.write:
        parser.error("a dry run has no figures to write")
    name = "no GPU: a dry run" if dry else torch.cuda.get_device_name()
    about = f"{name}, PyTorch {torch.__version__}, Python {platform.python_version()}"
    with pretended_cuda() if dry else contextlib.nullcontext():
        findings = measure(Lab(dry, 0.0 if dry else arguments.seconds), only)
    if arguments.self_check:
        self_check(findings, about)
        return 0
    print(markdown(findings, about))
    if arguments.write:
        write_page(pathlib.Path(arguments.write), findings, about)
    return 1 if any(finding.failed for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
