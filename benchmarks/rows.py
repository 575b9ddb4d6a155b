"""The rows of docs/performance.md: for each the work, what is measured beside it, its goal, and where the results of a
run have it. Benchmarks in C++ print the goals of their own tables, too, and these have to be the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

LOADER, FEED, TENSORS = "penstock.Loader", "penstock.feed", "penstock.feed(DataLoader of a TensorDataset)"
PINNED_BEFORE = "`.to(non_blocking=True)` of each, pinned before"
RAW, FLAT = "pinned before: the raw copy", "one flat tensor of as many bytes, `to_device`"
PINNED = "`.copy_(non_blocking=True)` of each, into pinned memory"
EACH = "`.copy_(non_blocking=True)` to each, pinned"
ALL_LINKS = "all links at once"
ALONE, RAW_PINNED, LATER = "the program alone", "raw pinned copy", "penstock, later"
SAVER = "torch_memory_saver, first"
PICTURES, FED_PICTURES = "penstock.Pictures", "penstock.feed(pictures=True)"
DEVICE_PICTURES, NVJPEG = f"{PICTURES}, decoded on the GPU", "nvJPEG alone, by its engines"
PILLOW, THERE = "ImageFolder, Pillow", "a batch on the device already"
STATE = "state dict, 48 tensors, 3072 MiB"


class Cell(NamedTuple):
    """What one run has of a row, as text, and whether the goal is met: None if there is none."""

    ours: str
    theirs: str = ""
    met: bool | None = None


class Row(NamedTuple):
    work: str
    beside: str  # what `theirs` of the cells is
    goal: str  # empty: none
    part: str  # of the results
    read: Callable[[Any], Cell | None]  # of that part; None or KeyError: not measured
    answers: bool  # whether it is among the first lines of the page


def table(work: str, goal: str) -> Callable[[Any], Cell | None]:
    """The line of a C++ benchmark's own table that begins so."""

    def read(part: Any) -> Cell | None:
        found = [line for line in part["table"] if line["work"].startswith(work)]
        if not found:
            return None
        line = found[0]
        if line["goal"] != goal:
            raise ValueError(f"{line['work']}: its benchmark has the goal {line['goal']!r}, rows.py {goal!r}")
        theirs = ", ".join(text for text in (line["beside"], line["ratio"]) if text)
        return Cell(line["penstock"], theirs, line["met"] if goal else None)

    return read


def figures(part: Any, workload: str, contender: str) -> dict[str, Any]:
    """Of compare.py: the contender's figures in the workload whose whole name the expression matches."""
    for result in part["results"]:
        if result["verified"] and result["contender"] == contender and re.fullmatch(workload, result["workload"]):
            return result["figures"]
    raise KeyError(f"{workload}: {contender}")


def best_of(part: Any, workload: str, *contenders: str) -> float:
    """Samples a second of the fastest of those that were measured."""
    rates = []
    for contender in contenders:
        try:
            rates.append(figures(part, workload, contender)["samples_per_second"])
        except KeyError:
            continue
    if not rates:
        raise KeyError(workload)
    return max(rates)


def rate(value: float, unit: str = "samples/s") -> str:
    return f"{value / 1e6:.1f} M {unit}" if value >= 1e6 else f"{value:,.0f} {unit}"


def data_loader(part: Any, workload: str) -> float:
    return best_of(part, workload, "DataLoader, 0 workers", "DataLoader, best of N workers")


def images(part: Any) -> Cell:
    ours = figures(part, "images", LOADER)
    theirs = data_loader(part, "images")
    return Cell(
        f"{ours['stored_gbps']:.1f} GB/s, {rate(ours['samples_per_second'], 'images/s')}",
        f"{rate(theirs, 'images/s')}, {ours['samples_per_second'] / theirs:.1f} x",
        ours["stored_gbps"] >= 51,
    )


def widened(part: Any) -> Cell:
    gbps = 4 * 150528 * figures(part, "images to float32", LOADER)["samples_per_second"] / 1e9
    return Cell(f"{gbps:.0f} GB/s", met=gbps >= 200)


def native(part: Any) -> Cell:
    ours = figures(part, "images", TENSORS)["samples_per_second"]
    theirs = figures(part, "images", LOADER)["samples_per_second"]
    return Cell(rate(ours, "images/s"), f"{rate(theirs, 'images/s')}, {ours / theirs:.1%}", ours >= 0.95 * theirs)


def small(contender: str, least: float, times: float) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        ours = figures(part, "small samples", contender)["samples_per_second"]
        theirs = data_loader(part, "small samples")
        return Cell(rate(ours), f"{rate(theirs)}, {ours / theirs:.1f} x", ours >= max(least, times * theirs))

    return read


def step(contender: str, most: float) -> Callable[[Any], Cell]:
    """The longest of the steps that a consumer took beside a feed of images."""

    def read(part: Any) -> Cell:
        steps = figures(part, "images", contender)["steps"]
        if not steps:
            raise KeyError("steps")
        longest = max(steps, key=lambda each: each["alone_ms"])
        times = longest["fed_ms"] / longest["alone_ms"]
        return Cell(f"{longest['fed_ms']:.2f} ms", f"{longest['alone_ms']:.2f} ms, {times:.3f} x", times <= most)

    return read


def workers(count: int, least: float) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        workload = f"images, tensors, {count} workers"
        ours, theirs = (figures(part, workload, name)["samples_per_second"] for name in (FEED, "DataLoader"))
        return Cell(
            rate(ours, "images/s"), f"{rate(theirs, 'images/s')}, {ours / theirs:.1f} x", ours >= least * theirs
        )

    return read


def decoding(part: Any) -> Cell:
    workload = r"images, decoding, \d+ workers"
    ours, theirs = figures(part, workload, FEED), figures(part, workload, "DataLoader, left on the host")
    share, limit = ours["samples_per_second"] / theirs["samples_per_second"], ours["limited_by"]
    return Cell(
        f"{rate(ours['samples_per_second'], 'images/s')}, limited by {limit}",
        f"{rate(theirs['samples_per_second'], 'images/s')}, {share:.0%}",
        share >= 0.97 and limit in ("loader", "fetch", "collate"),
    )


def training(name: str) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        found = figures(part, f"train {name}.*", FEED)
        share = found["share_of_compute"]
        return Cell(
            rate(found["samples_per_second"]), f"{rate(found['alone_samples_per_second'])}, {share:.1%}", share >= 0.97
        )

    return read


def framework(name: str) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        workload = f"a step of 10 ms in {name}"
        ours, theirs = (figures(part, workload, contender)["step_ms"] for contender in (FEED, "resident"))
        return Cell(f"{ours:.2f} ms", f"{theirs:.2f} ms, {ours / theirs:.3f} x", ours <= 1.02 * theirs)

    return read


def columns(table: str, most: float, more: str = "") -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        us = figures(part, f"{table}, batch 8192{more}", LOADER)["batch_us"]
        return Cell(f"{us:.0f} µs", met=us <= most)

    return read


def own_cost(batch: str, most: float) -> Callable[[Any], Cell]:
    """Between batches a thread that trains does something else; without it, the transfer would be timed."""

    def read(part: Any) -> Cell:
        names = (FEED, PINNED_BEFORE)
        ours, theirs = (figures(part, f"own cost: {batch}.*", name)["thread_us_after_rest"] for name in names)
        return Cell(f"{ours:.0f} µs", f"{theirs:.0f} µs", ours <= most)

    return read


def moved(workload: str, contender: str, other: str, least: float, *shown: str) -> Callable[[Any], Cell]:
    """GB/s beside another contender's, and those of others that are shown if they were measured."""

    def read(part: Any) -> Cell:
        ours, theirs = (figures(part, workload, name)["gbps"] for name in (contender, other))
        texts = [f"{theirs:.1f} GB/s, {ours / theirs:.1%}"]
        for name in shown:
            try:
                texts.append(f"{name} {figures(part, workload, name)['gbps']:.1f}")
            except KeyError:
                continue
        return Cell(f"{ours:.1f} GB/s", "; ".join(texts), ours >= least * theirs)

    return read


def brought_back(part: Any) -> Cell:
    gbps = figures(part, f"{STATE}, back", "penstock.to_host")["gbps"]
    return Cell(f"{gbps:.1f} GB/s", met=gbps >= 25)


def saved(part: Any) -> Cell:
    ours = figures(part, f"{STATE}, to a file", "penstock.save_safetensors(wait=False)")["gbps"]
    theirs = figures(part, f"{STATE}, back", PINNED)["gbps"]
    return Cell(f"{ours:.1f} GB/s", f"{theirs:.1f} GB/s, {theirs / ours:.2f} x the time", theirs / ours <= 1.05)


def small_copy(pace: str, contender: str) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        workload = f"a copy of 51 KB beside images from {pace}"
        ours, alone = (figures(part, workload, name)["copy_p99_ms"] for name in (contender, "nothing beside it"))
        return Cell(f"{ours:.2f} ms", f"{alone:.2f} ms", ours <= 1)

    return read


def started(program: str) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        found = part["samples_per_second"][program]
        ours, theirs = (found[way]["first second"] for way in (FEED, "DataLoader"))
        return Cell(rate(ours, "in 1 s"), rate(theirs, "in 1 s"))

    return read


def recorded(name: str, most: float) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        plain, ours, theirs = (part[each]["step_ms"] for each in ("not recorded", name, "torch.profiler"))
        return Cell(f"{ours / plain - 1:+.1%}", f"{theirs / plain - 1:+.1%}", ours / plain - 1 <= most)

    return read


def gains(part: Any) -> Cell | None:
    """Of programs that ran again, the last result counts."""
    last = {each["name"]: each for each in part["fixed"] if not each.get("skipped")}.values()
    within = sum(each["in_range"] for each in last)
    return Cell(f"{within} of {len(last)}", met=within >= 0.8 * len(last)) if last else None


def compared(ours: float, theirs: float, unit: str, least: float | None) -> Cell:
    met = None if least is None else ours >= least * theirs
    return Cell(f"{ours:,.1f} {unit}", f"{theirs:,.1f} {unit}, {ours / theirs:.2f} x", met)


def links(name: str) -> Callable[[Any], Cell]:
    """Of groups.py: beside plain copies over all links at once."""

    def read(part: Any) -> Cell:
        return compared(part["gbps"][name], part["gbps"][EACH] * len(part["devices"]), "GB/s", 0.95)

    return read


def all_reduce(part: Any) -> Cell:
    reduced = part["all_reduce"]
    ours = reduced["beside `to_device(relay=)` to the first, pinned"][0]
    alone = (reduced["alone"][0] + reduced["alone, again"][0]) / 2
    return Cell(f"{ours:.1f} GB/s", f"{alone:.1f} GB/s, {ours / alone:.1%}", ours >= 0.97 * alone)


def processes(name: str, least: float) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        ours, theirs = part["gbps"][name], part["gbps"]["raw copies"]
        return Cell(f"{ours:.1f} GB/s", f"{theirs:.1f} GB/s, {ours / theirs:.3f} x", ours >= least * theirs)

    return read


def same_batches(part: Any) -> Cell:
    """In sum: each of the processes receives what all links carry."""
    return processes("the same batches for all, once", 0.95 * len(part["devices"]))(part)


def shared_pages(part: Any) -> Cell:
    times = part["shared_bytes"] / part["dataset_bytes"]
    return Cell(f"{times:.3f} x", met=times <= 1.05)


def under_run(name: str, goal: str) -> Callable[[Any], Cell]:
    """Of run.py: a work under `penstock run`, beside the program alone."""

    def read(part: Any) -> Cell:
        row = {row["work"]: row for row in part["rows"]}[name]
        least = float(goal.removesuffix(" x")) if goal else None
        return compared(row["run_gbps"], row["alone_gbps"], "steps/s" if name.startswith("steps") else "GB/s", least)

    return read


def trip(way: str, direction: str, beside: str, least: float) -> Callable[[Any], Cell]:
    """Of park.py: state that leaves the GPU or comes back."""

    def read(part: Any) -> Cell:
        ours, theirs = (part["ways"][name][f"{direction}_gbps"] for name in (way, beside))
        return compared(ours, theirs, "GB/s", least)

    return read


def held(part: Any) -> Cell:
    return Cell(f"{part['held']:.3f} x", met=part["held"] <= 1.02)


def turns(size: str) -> Callable[[Any], Cell]:
    """Of park.py: how much of the steps of a loop are trips."""

    def read(part: Any) -> Cell:
        ours, theirs = (part["loop"][size][name] for name in ("penstock", "by hand"))
        return Cell(*(f"{each['share']:.0%} of {each['step_s']:.2f} s" for each in (ours, theirs)))

    return read


def over_both(part: Any) -> Cell:
    rates = part["relayed"]["gbps"]
    return compared(rates["both links"], rates["one link"], "GB/s", 1.8)


def skipped(name: str) -> Callable[[Any], Cell]:
    def read(part: Any) -> Cell:
        its = part[name]
        text = f"{its['whole_s']:.3f} s, {its['times']:.0f} x"
        return Cell(f"{its['again_s']:.4f} s", text, its["times"] >= 20 if name == "frozen" else None)

    return read


def swapped(part: Any) -> Cell:
    swap = part["swap"]
    return Cell(f"{swap['swap_s']:.3f} s", f"{swap['one_way_s']:.3f} s, {swap['times']:.2f} x", swap["times"] <= 1.1)


def replayed(part: Any) -> Cell:
    ours, theirs = part["gbps"]["penstock.ReplayBuffer"]["sampled"], part["gbps"]["shared tensors"]["sampled"]
    return Cell(f"{ours:.1f} GB/s", f"{theirs:.1f} GB/s, {ours / theirs:.1f} x", ours >= 45)


def kept_writing(part: Any) -> Cell:
    rates = part["gbps"]["penstock.ReplayBuffer"]
    return compared(rates["written"], rates["written alone"], "GB/s", 0.95)


def pictures(way: str, beside: str, least: float | None = None) -> Callable[[Any], Cell]:
    """Of pictures.py: images a second."""
    return lambda part: compared(*(part["ways"][name]["rate"] for name in (way, beside)), "images/s", least)


eight_workers = workers(8, 5.5)
resnet = training("resnet18")
one_tensor = moved("one pageable tensor of 1024 MiB", "penstock.to_device", RAW, 0.97, "`.to()`")
brought_out = moved(f"{STATE}, back", "penstock.to_host(out=)", PINNED, 0.9)
loaded = moved(f"{STATE}, in a file", "penstock.load_safetensors", FLAT, 1, "InstantTensor", "fastsafetensors")


def to_device(count: int) -> Callable[[Any], Cell]:
    return moved(f"state dict, {count} tensors, 3072 MiB", "penstock.to_device", FLAT, 0.97)


RAW_LINK = "the driver's copy of pinned memory"
BEST = "DataLoader at its best"
WHOLE = "transfers in one piece"
PASSES = "p99 1 ms, 98 % of the rate"

# The lines of the tables of bench_engine and bench_loader: work, what is beside it, goal, the line's first words.
ENGINE = (
    ("pinned memory to the GPU, 1 GiB", RAW_LINK, "99 %", "pinned H2D"),
    ("pageable memory to the GPU, 1 GiB", RAW_LINK, "97 %", "pageable H2D"),
    ("the GPU to pageable memory, 1 GiB", RAW_LINK, "90 %", "pageable D2H"),
    ("1000 pieces of 4 KiB, pageable, to the GPU", "1000 pinned asynchronous copies", "120 µs", "1000 pieces"),
    ("one pinned copy of 64 KiB", "the driver's", "driver + 1 µs", "one 64 KiB pinned copy"),
    ("a pinned pool of 2 GiB, ready for use", "the driver's allocator", "0.10 s", "a pinned pool"),
    ("a copy of 51 KB beside pinned transfers", WHOLE, PASSES, "beside transfers, pinned, the host waits"),
    ("the same beside pageable transfers", WHOLE, PASSES, "beside transfers, pageable"),
)
LOADER_TABLE = (
    ("images as below, gathered by host threads, C++", "", "", "the same, host gather"),
    ("resident samples of 256 B, read and written", "a device copy", "70 %", "resident, samples of 256 B"),
    ("resident samples of 4 KiB", "a device copy", "70 %", "resident, samples of 4 KiB"),
    ("resident samples of 147 KiB", "a device copy", "70 %", "resident, samples of 147 KiB"),
    ("processor time per GB of images", "", "0.01 s", "CPU time per GB fed"),
    ("time to the first batch, 2.5 GB in memory", "the first of three", "0.25 s", "time to first batch"),
    ("a copy of 51 KB beside a `Loader` at full speed", "", "p99 1 ms", "beside a loader at full speed"),
)
# Works of run.py: work, how many times the rate of the program alone, name there.
RUN = (
    ('`x.to("cuda")` of 16 MiB, `penstock run`', "2 x", "x.to(cuda), 16 MiB"),
    ("the same of 64 MiB", "3.5 x", "x.to(cuda), 64 MiB"),
    ("the same of 1 GiB", "5 x", "x.to(cuda), 1024 MiB"),
    ("`x.cpu()` of 256 MiB, `penstock run`", "15 x", "g.cpu(), 256 MiB"),
    ("`x.cpu()` of 1 GiB", "15 x", "g.cpu(), 1024 MiB"),
    ('`.to("cuda")` of 24 tensors of 64 MiB', "4 x", "state dict of 24 x 64 MiB"),
    ('`.to("cuda")` of 2000 tensors of 1 MiB', "1.5 x", "state dict of 2000 x 1 MiB"),
    ("a module of 100 x 16 MiB, to the GPU", "4 x", "module.to(cuda), 100 x 16 MiB"),
    ("the same module, to the host", "10 x", "module.to(cpu), 100 x 16 MiB"),
    ('`torch.load(map_location="cuda")`, 4 GB', "", "torch.load(map_location=cuda), 4 GB"),
    ("steps of 60 kernels, `penstock run`", "0.99 x", "steps of 60 kernels, a second"),
)
# For each part of the results: work, what is beside it, goal, and what reads it.
OTHERS: dict[str, tuple[tuple[str, str, str, Callable[[Any], Cell | None]], ...]] = {
    "compare": (
        ("3x224x224 uint8 images from memory, shuffled, batch 256, `Loader`", BEST, "51 GB/s", images),
        ("the same, delivered as float32", "", "200 GB/s", widened),
        ("the same images, `feed` around a DataLoader of a TensorDataset", "`Loader`", "95 %", native),
        ("the same beside steps of 10 ms, `Loader`", "the step alone", "1.02 x", step(LOADER, 1.02)),
        ("the same beside steps of 10 ms, `feed`", "the step alone", "1.02 x", step(TENSORS, 1.02)),
        ("images from 4 workers, `feed` around the DataLoader", "DataLoader, pinned", "4 x", workers(4, 4)),
        ("images from 8 workers, `feed` around the DataLoader", "DataLoader, pinned", "5.5 x", eight_workers),
        ("images from 14 workers, `feed` around the DataLoader", "DataLoader, pinned", "6.5 x", workers(14, 6.5)),
        ("images that workers decode, `feed` around them", "the workers alone", "97 %, limited by them", decoding),
        ("a copy of 51 KB beside `feed` with workers, p99", "alone", "1 ms", small_copy(".* full speed", FEED)),
        ("samples of 64 float32, batch 4096, `Loader`", BEST, "60 M samples/s", small(LOADER, 60e6, 0)),
        ("small samples, `feed` around a DataLoader of a TensorDataset", BEST, "20 x", small(TENSORS, 0, 20)),
        ("one column of int64, batch 8192, `Loader`", "", "30 µs", columns("one int64 column", 30)),
        ("28 columns", "", "100 µs", columns("28 int64 columns", 100)),
        ("28 columns of 20 million rows", "", "100 µs", columns("28 int64 columns", 100, ", 20,000,000 rows")),
        ("100 columns", "", "180 µs", columns("100 int64 columns", 180)),
        ("400 columns", "", "450 µs", columns("400 int64 columns", 450)),
        ("training a ResNet-18, `feed` natively", "compute alone", "97 %", resnet),
        ("training a perceptron, `feed` natively", "compute alone", "97 %", training("perceptron")),
        ("training a recommender, `feed` natively", "compute alone", "97 %", training("recommender")),
        ("steps of 10 ms in Lightning, `feed`", "batches on the GPU already", "1.02 x", framework("Lightning")),
        ("steps of 10 ms in Accelerate, `feed`", "batches on the GPU already", "1.02 x", framework("Accelerate")),
        ("steps of 10 ms in the Trainer, `feed`", "batches on the GPU already", "1.02 x", framework("Trainer")),
        ("a pageable tensor of 1 GiB, `to_device`", "a raw pinned copy; `.to()`", "97 %", one_tensor),
        ("a state dict of 48 tensors, 3 GiB, `to_device`", "one flat tensor", "97 %", to_device(48)),
        ("the same in 5000 tensors", "one flat tensor", "97 %", to_device(5000)),
        ("48 tensors back, `to_host`, new memory", "", "25 GB/s", brought_back),
        ("the same, `to_host(out=)`", "copies into pinned memory", "90 %", brought_out),
        ("the same, `save_safetensors(wait=False)`", "copies into pinned memory", "1.05 x the time", saved),
        ("weights of 3 GiB from a file in memory, `load_safetensors`", "one flat tensor; others", "100 %", loaded),
        ("a dict of 500 small tensors, `feed`: the thread", "`.to()` of each, pinned", "400 µs", own_cost("dict", 400)),
        ("256x64 float32 and labels, the same", "`.to()` of each, pinned", "30 µs", own_cost("2 tensors, 256x64", 30)),
        (
            "256x3x224x224 uint8 and labels, the same",
            "`.to()` of each, pinned",
            "30 µs",
            own_cost("2 tensors, 256x3", 30),
        ),
    ),
    "starts": (
        ("float32 images, 8 workers, `feed`: in the first second", "DataLoader, pinned", "", started("images")),
        ("28 columns, 8 workers", "DataLoader, pinned", "", started("columns")),
        ("text, 8 workers", "DataLoader, pinned", "", started("text")),
    ),
    "recorder": (
        ("a step of 60 kernels, recorded by the doctor", "torch.profiler", "3 %", recorded("recorded", 0.03)),
        ("the same without lines", "torch.profiler", "2 %", recorded("without lines (--no-lines)", 0.02)),
    ),
    "gains": (("gains of fixed programs within the doctor's range", "", "8 of 10", gains),),
    "run": tuple((work, ALONE, goal, under_run(name, goal)) for work, goal, name in RUN),
    "park": (
        ("state that leaves the GPU again, `park`", RAW_PINNED, "95 %", trip(LATER, "down", RAW_PINNED, 0.95)),
        ("state that comes back, `resume`", RAW_PINNED, "95 %", trip(LATER, "up", RAW_PINNED, 0.95)),
        ("the first `park`", "`.to('cpu')`", "15 x", trip("penstock, first", "down", ".to('cpu')", 15)),
        ("the first `park`, beside a library", "torch_memory_saver", "5 x", trip("penstock, first", "down", SAVER, 5)),
        ("pinned memory that a `park` holds", "the state", "1.02 x", held),
        ("generate, park, train, resume; 1 B", "`.to()` by hand", "", turns("1 B")),
        ("generate, park, train, resume; 7 B", "`.to()` by hand", "", turns("7 B")),
        ("`resume` over two links", "one link", "1.8 x", over_both),
        ("a frozen model and 1 % of it, again", "all of it", "20 x", skipped("frozen")),
        ("the same by hashes of the GPU", "all of it", "", skipped("unchanged")),
        ("two models in turn, `swap`", "one direction", "1.1 x", swapped),
    ),
    "replay": (
        ("512 rows of 4x84x84 while 8 processes write, `ReplayBuffer`", "shared tensors", "45 GB/s", replayed),
        ("what the 8 processes write meanwhile", "alone", "95 %", kept_writing),
    ),
    "pictures": (
        ("JPEGs of 500x375, train transforms, `Pictures`", PILLOW, "2.5 x", pictures(PICTURES, PILLOW, 2.5)),
        ("the same pictures, `feed(pictures=True)`", PILLOW, "", pictures(FED_PICTURES, PILLOW)),
        ("the same pictures, decoded on the GPU", "nvJPEG alone", "95 %", pictures(DEVICE_PICTURES, NVJPEG, 0.95)),
        ("the same pictures, decoded before", PILLOW, "", pictures(f"{PICTURES}, decoded before", PILLOW)),
    ),
    "training": (
        ("training a ResNet-50 on them, `Pictures`", THERE, "97 %", pictures(PICTURES, THERE, 0.97)),
        ("the same training, decoded on the GPU", THERE, "97 %", pictures(DEVICE_PICTURES, THERE, 0.97)),
        ("the same training, `feed(pictures=True)`", THERE, "97 %", pictures(FED_PICTURES, THERE, 0.97)),
    ),
    "groups": (
        ("all GPUs receive all, `to_device(group=)`", ALL_LINKS, "95 %", links("to_device(group=), pinned")),
        ("one receives over all links, `to_device(relay=)`", ALL_LINKS, "95 %", links("to_device(relay=), pinned")),
        ("NCCL's all-reduce beside this relay", "alone", "97 %", all_reduce),
        ("all GPUs get the same batches, `Loader(group=)`", ALL_LINKS, "95 %", links("Loader(group=)")),
    ),
    "processes": (
        ("a process for each GPU, a share each, `Loader`", "raw copies", "97 %", processes("later epochs", 0.97)),
        ("the same batches in all, `ProcessGroup`", "raw copies", "95 % of all links, each", same_batches),
        ("one `SharedDataset` in all: memory", "", "1.05 x the data", shared_pages),
    ),
}
ANSWERS = (images, eight_workers, resnet, one_tensor, loaded)
ROWS = [
    *(Row(*row[:3], "engine", table(row[3], row[2]), False) for row in ENGINE),
    *(Row(*row[:3], "loader", table(row[3], row[2]), False) for row in LOADER_TABLE),
    *(Row(*row[:3], part, row[3], row[3] in ANSWERS) for part, rows in OTHERS.items() for row in rows),
]
