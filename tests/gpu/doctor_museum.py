#!/usr/bin/env python3
"""Runs planted programs under `penstock doctor`, and checks what it finds, and in PyTorch programs at which line:
doctor_museum.py --penstock build/release/penstock [--only NAME...] [--fixed] [--json FILE]

The programs are in museum_exhibits.py (PyTorch) and museum_programs.cu (C++). It needs a GPU and PyTorch; without them
it says so and does nothing. --fixed only runs those whose mistake can be taken out, with it and without, and compares
what that gained with what was predicted. --overhead only measures what the recorder costs a step of 2 ms with 60
kernels.

Each result is printed, and written to the JSON file, as soon as it is known.
"""

import argparse
import concurrent.futures
import contextlib
import fcntl
import functools
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from museum_exhibits import EXHIBITS, LONG, Exhibit

HERE = pathlib.Path(__file__).parent
NOTHING = 0.02  # of a step: the doctor says "about nothing: leave it" below
BATCH = 8  # programs that start at once and then take turns, so that nothing starts beside one that is measured
# Many of them start at once, and none computes on the host.
FEW_THREADS = {"OMP_NUM_THREADS": "2"}

PROFILED = """
from torch.profiler import ProfilerActivity, profile
for _ in range(30):
    train(resident)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for _ in range(5):
        train(resident)
    torch.cuda.synchronize()
kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
print("kernels:", len(kernels))
"""

# Two processes on one GPU: gloo needs no GPU of their own for each.
TORCHRUN = """
import torch.distributed
torch.distributed.init_process_group("gloo")
data = torch.rand(4, 1024, 2048)
for i in range(40):
    train(data[i % 4].to(device))  # HERE
    torch.distributed.all_reduce(torch.zeros(1))
torch.cuda.synchronize()
torch.distributed.destroy_process_group()
"""

# 58 kernels of some 25 us, and the copy and the sum that a training step has. It says how long a step took: the median,
# and the mean, which has the pauses in which records are collected, too.
OVERHEAD = """
import contextlib, fcntl, os, statistics, sys, time
import torch
torch.cuda.init()
turn = open(os.environ["MUSEUM_TURN"])
fcntl.flock(turn, fcntl.LOCK_EX)
a = torch.rand(2048, 2048, device="cuda", dtype=torch.bfloat16)
b = torch.rand(2048, 2048, device="cuda", dtype=torch.bfloat16)
data = torch.rand(1 << 18).pin_memory()
def step():
    x = data.to("cuda", non_blocking=True)
    y = a
    for _ in range(58):
        y = y @ b
    return float(y[0, 0] + x[0])
def steps(seconds):
    times, begin = [time.perf_counter()], time.perf_counter()
    while times[-1] - begin < seconds:
        step()
        times.append(time.perf_counter())
    return [after - before for before, after in zip(times, times[1:])]
steps(0.4)
context = contextlib.nullcontext()
if "profile" in sys.argv:
    context = torch.profiler.profile()
with context:
    taken = steps(1.3)
print("step:", statistics.median(taken), statistics.mean(taken), flush=True)
fcntl.flock(turn, fcntl.LOCK_UN)
"""
# The options that leave something out; None: not recorded.
RECORDERS = {
    "not recorded": None,
    "recorded": [],
    "without lines (--no-lines)": ["--no-lines"],
}
PROFILERS = {"torch.profiler": ["profile"]}


def missing() -> str | None:
    """Why nothing can be run here; None if it can."""
    program = "import torch; print(torch.cuda.is_available())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return "this Python has no PyTorch"
    return None if result.stdout.strip() == "True" else "PyTorch sees no GPU"


def run(command: list, environment: dict | None = None, timeout: float = 100) -> subprocess.CompletedProcess:
    """If it takes too long, ends it with all processes that it started."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@functools.cache
def native_environment() -> dict:
    """Where CUPTI is, for programs that have no PyTorch beside them, if there is no toolkit's."""
    if list(pathlib.Path("/usr/local/cuda/extras/CUPTI/lib64").glob("libcupti.so*")):
        return {}
    packages = importlib.util.find_spec("nvidia")
    for folder in packages.submodule_search_locations or [] if packages else []:
        for library in pathlib.Path(folder).glob("*/lib/libcupti.so.*"):
            return {"PENSTOCK_LIBCUPTI": str(library)}
    return {}


def python_environment() -> dict:
    """tools/python.sh beside puts the package there."""
    beside = HERE.parents[1] / "build" / "python" / "beside"
    paths = [str(beside), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": ":".join(path for path in paths if path)} if beside.exists() else {}


@contextlib.contextmanager
def turn_taken(turn: pathlib.Path):
    with open(turn) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Museum:
    def __init__(self, penstock: pathlib.Path, folder: pathlib.Path) -> None:
        self.penstock = penstock
        self.folder = folder
        self.turn = folder / "turn"
        self.turn.touch()
        self.building = threading.Lock()

    @functools.cached_property
    def built(self) -> tuple[pathlib.Path, str]:
        """The program with those in C++, and why it could not be built; empty if it could."""
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        program = self.folder / "museum_programs"
        command = [nvcc, "-std=c++17", "-O1", "-arch=native", "-o", program, HERE / "museum_programs.cu"]
        try:
            result = run(command)
        except OSError as error:
            return program, f"no compiler: {error}"
        if result.returncode == 0:
            return program, ""
        return program, "not compiled: " + (result.stderr.strip().splitlines() or ["nvcc said nothing"])[-1]

    def programs(self) -> tuple[pathlib.Path, str]:
        with self.building:
            return self.built

    def command(self, exhibit: Exhibit, fixed: bool) -> tuple[list, dict, pathlib.Path, int | None]:
        """What runs it, and the file and line of its mistake. The doctor names no lines of C++."""
        text = exhibit.text(fixed)
        if exhibit.native:
            return [self.programs()[0], text], native_environment(), HERE / "museum_programs.cu", None
        source = self.file(exhibit, fixed, ".py")
        source.write_text(text)
        line = next((number for number, code in enumerate(text.splitlines(), 1) if "# HERE" in code), None)
        return [sys.executable, source], python_environment(), source, line

    def file(self, exhibit: Exhibit, fixed: bool, suffix: str) -> pathlib.Path:
        return self.folder / (re.sub(r"\W+", "_", exhibit.name) + ("_fixed" if fixed else "") + suffix)

    def take_turns(self, runs: list[tuple[Exhibit, bool]]):
        """Runs programs alone on the GPU, with their mistake or fixed, and gives each with its result when it is known.
        The turns begin when all programs of a batch have started."""
        for first in range(0, len(runs), BATCH):
            batch = runs[first : first + BATCH]
            with concurrent.futures.ThreadPoolExecutor(BATCH) as pool:
                with turn_taken(self.turn):
                    futures = {pool.submit(self.judge, run[0], True, run[1]): run for run in batch}
                    end = time.monotonic() + 60
                    while time.monotonic() < end and not all(
                        future.done() or self.file(*run, ".ready").exists() for future, run in futures.items()
                    ):
                        time.sleep(0.05)
                for future in concurrent.futures.as_completed(futures):
                    yield *futures[future], future.result()

    def why_not(self, exhibit: Exhibit) -> str:
        if exhibit.native:
            return self.programs()[1]
        if exhibit.needs:
            found = run([sys.executable, "-c", f"import {exhibit.needs}"], python_environment())
            return "" if found.returncode == 0 else f"{exhibit.needs} is not installed"
        return ""

    def judge(self, exhibit: Exhibit, alone: bool, fixed: bool = False) -> dict:
        """Runs one program. The result says whether the doctor was right, and what it said."""
        result = self.expected_of(exhibit, alone)
        try:
            return self.run_one(result, exhibit, alone, fixed)
        except (ValueError, KeyError, IndexError, OSError) as error:  # one program must not cost the others' results
            return {**result, "said": f"{type(error).__name__}: {error}"}

    @staticmethod
    def expected_of(exhibit: Exhibit, alone: bool) -> dict:
        return {
            "name": exhibit.name,
            "expected": exhibit.finding or "nothing",
            "right": False,
            "known": exhibit.known,
            "line": "-",
            "alone": alone,
        }

    def run_one(self, result: dict, exhibit: Exhibit, alone: bool, fixed: bool) -> dict:
        if why := self.why_not(exhibit):
            return {**result, "skipped": True, "said": why}
        command, environment, source, line = self.command(exhibit, fixed)
        turn = {"MUSEUM_TURN": str(self.turn), "MUSEUM_READY": str(self.file(exhibit, fixed, ".ready"))}
        environment = {**environment, **(turn if alone else FEW_THREADS)}
        out = self.file(exhibit, fixed, ".json")
        begin = time.monotonic()
        try:
            command = [self.penstock, "doctor", "--json", out, "--", *command]
            process = run(command, environment, timeout=150 if alone else 100)
        except subprocess.TimeoutExpired:
            return {**result, "seconds": time.monotonic() - begin, "said": "it took too long"}
        result["seconds"] = time.monotonic() - begin
        if turn := re.search(r"museum: waited (\S+) s, had its turn for (\S+) s", process.stdout):
            result["seconds"] -= float(turn[1])
            result["turn_seconds"] = float(turn[2])
        report = json.loads(out.read_text()) if out.exists() else {}
        if process.returncode != 0 or not report.get("processes"):
            tail = (process.stderr.strip().splitlines() or ["nothing"])[-1]
            return {**result, "said": f"exit status {process.returncode}: {tail}"}
        return {**result, **look(exhibit, report["processes"][0], source, line, alone)}

    def profiled(self) -> dict:
        """The program's own profiler must see its kernels, whoever records."""
        program = self.folder / "profiled.py"
        program.write_text(LONG + PROFILED)
        out = program.with_suffix(".json")
        begin = time.monotonic()
        process = run([self.penstock, "doctor", "--json", out, "--", sys.executable, program])
        kernels = re.search(r"kernels: (\d+)", process.stdout)
        recorded = out.exists() and json.loads(out.read_text())["processes"]
        yielded = "profiler of its own" in process.stderr
        return {
            "name": "torch.profiler in the program",
            "expected": "kernels in both",
            "right": bool(kernels and int(kernels[1]) > 50 and recorded),
            "line": "-",
            "seconds": time.monotonic() - begin,
            "said": f"torch.profiler: {kernels[1] if kernels else 'no'} kernels; the doctor "
            + ("made way" if yielded else "did not make way"),
        }

    def torchrun(self) -> dict:
        """Each of its processes has a report."""
        exhibit = Exhibit("torchrun with two processes", TORCHRUN, "pageable-copies", LONG)
        _, environment, source, line = self.command(exhibit, False)
        out = source.with_suffix(".json")
        begin = time.monotonic()
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", source]
        process = run([self.penstock, "doctor", "--json", out, "--", *launch], {**environment, **FEW_THREADS})
        processes = json.loads(out.read_text())["processes"] if out.exists() else []
        looks = [look(exhibit, recorded, source, line, False) for recorded in processes]
        return {
            "name": exhibit.name,
            "expected": "pageable-copies in both",
            "right": process.returncode == 0 and len(looks) == 2 and all(seen["right"] for seen in looks),
            "line": ", ".join(seen["line"] for seen in looks) or "-",
            "seconds": time.monotonic() - begin,
            "said": f"{len(looks)} reports: " + " | ".join(seen["said"] for seen in looks),
        }


def look(exhibit: Exhibit, recorded: dict, source: pathlib.Path, line: int | None, alone: bool) -> dict:
    """What the doctor said about a process, and whether that is right."""
    device = recorded["devices"][0]
    step = device["step_seconds"]
    gains = [f["gain_seconds_per_step"]["high"] / step if step else 0.0 for f in recorded["findings"]]
    # Another program on the GPU makes gains meaningless.
    said = [
        f["id"] + (f" {gain:.0%}" if alone else "") for f, gain in zip(recorded["findings"], gains, strict=True)
    ] or ["nothing"]
    result = {
        "step_seconds": step,
        "seconds_without_kernels": step * (1 - device["parts"]["kernel"]["share"]),
        "steps": device["steps"],
        "mean_error_seconds": (device["step_times"] or {}).get("mean_error_seconds") or 0.0,
        "findings": {f["id"]: f["gain_seconds_per_step"] for f in recorded["findings"]},
        "said": f"{device['steps'] or 'no'} steps; " + ", ".join(said),
        "line": "-",
    }
    if exhibit.steps and abs((device["steps"] or 0) - exhibit.steps) > exhibit.steps / 10:
        return {**result, "right": False}
    if exhibit.finding is None:
        return {**result, "right": all(gain < NOTHING for gain in gains)}
    places = [p["function"] for f in recorded["findings"] if f["id"] == exhibit.finding for p in f["places"]]
    if exhibit.finding not in result["findings"]:
        return {**result, "right": False}
    if exhibit.native:
        return {**result, "right": True}
    # Without steps, the beginning and the end of the program count too.
    looked_at = places if exhibit.may_come_later or not device["steps"] else places[:1]
    right = any(re.search(rf"(^|/){re.escape(source.name)}\({line}\)", place) for place in looked_at)
    wrong = next((place.rsplit("/", 1)[-1] for place in places if place), "none")
    return {**result, "right": right, "line": str(line) if right else f"{line}, not {wrong}"}


def predicted_by(before: dict, after: dict) -> dict | None:
    """The range of what is gone or less, as `penstock doctor --verify` says it: a fix may take out more than one finding.
    None: nothing is."""
    low = high = 0.0
    changed = False
    for name, gain in before["findings"].items():
        left = after["findings"].get(name, {"high": 0.0})["high"]
        if gain["high"] < NOTHING * before["step_seconds"]:
            continue
        if left < NOTHING * after["step_seconds"]:
            low = max(low, gain["low"])
            high += gain["high"]
        elif 2 * left < gain["high"]:
            high += gain["high"] - left
        else:
            continue
        changed = True
    return {"low": low, "high": max(low, min(high, before["seconds_without_kernels"]))} if changed else None


def compare(exhibit: Exhibit, before: dict, after: dict) -> dict:
    """What a fix gained, beside what was predicted of it. As with --verify, a gain out of the range may be in it if
    steps vary: it is `uncertain`."""
    comparison = {"name": exhibit.name, "finding": exhibit.finding, "in_range": False, "uncertain": False}
    if before.get("skipped"):
        return {**comparison, "skipped": True, "said": before["said"]}
    for result, which in ((before, "the planted program"), (after, "the fixed program")):
        if not result.get("steps"):
            return {**comparison, "said": f"{which}: {result['said']}"}
    predicted = predicted_by(before, after)
    if predicted is None:
        return {**comparison, "said": "no finding is gone, or less"}
    step = before["step_seconds"]
    gained = step - after["step_seconds"]
    left = after["findings"].get(exhibit.finding, {"high": 0})["high"]
    error = math.hypot(before["mean_error_seconds"], after["mean_error_seconds"])

    def is_in_range(allowance: float) -> bool:
        return predicted["low"] - allowance <= gained <= predicted["high"] + allowance

    in_range = is_in_range(NOTHING * step)  # what the doctor calls nothing is nothing here, too
    return {
        **comparison,
        "step_seconds": step,
        "fixed_step_seconds": after["step_seconds"],
        "predicted": predicted,
        "gained": gained,
        "error_seconds": error,
        "in_range": in_range,
        "uncertain": not in_range and is_in_range(NOTHING * step + error),
        "said": f"{1e3 * step:.2f} -> {1e3 * after['step_seconds']:.2f} ms: gained {gained / step:.1%}, predicted "
        f"{predicted['low'] / step:.1%} to {predicted['high'] / step:.1%}"
        + (f", steps vary: {error / step:.1%}" if error > NOTHING * step else "")
        + ("; it is found still" if left >= NOTHING * after["step_seconds"] else ""),
    }


def overhead(penstock: pathlib.Path, folder: pathlib.Path, rounds: int = 3) -> dict:
    """Measures the same step without a recorder and with parts of it, in turn, and prints what each costs."""
    program, turn = folder / "overhead.py", folder / "turn"
    program.write_text(OVERHEAD)
    turn.touch()

    def measure(name: str) -> tuple[str, tuple[float, float]]:
        command = [sys.executable, program, *PROFILERS.get(name, [])]
        if RECORDERS.get(name) is not None:
            command = [penstock, "doctor", "run", *RECORDERS[name], "--", *command]
        found = re.search(r"step: (\S+) (\S+)", run(command, {"MUSEUM_TURN": str(turn)}).stdout)
        return name, (float(found[1]), float(found[2])) if found else (float("nan"), float("nan"))

    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in [*RECORDERS, *PROFILERS]}
    # One starts while the one before is measured.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, result in pool.map(measure, [*taken] * rounds):
            taken[name].append(result)
            print(f"{name:34} {1e3 * result[0]:5.3f} ms {1e3 * result[1]:5.3f} ms", flush=True)
    costs = {
        name: {
            "step_ms": 1e3 * statistics.median(result[0] for result in results),
            "mean_step_ms": 1e3 * statistics.median(result[1] for result in results),
            "rounds": results,
        }
        for name, results in taken.items()
    }
    plain = costs["not recorded"]
    print(f"{'a step of 60 kernels':34} {'median':>8} {'cost':>7}  {'mean':>8} {'cost':>7}")
    for name, cost in costs.items():
        print(
            f"{name:34} {cost['step_ms']:5.3f} ms {cost['step_ms'] / plain['step_ms'] - 1:+7.1%}  "
            f"{cost['mean_step_ms']:5.3f} ms {cost['mean_step_ms'] / plain['mean_step_ms'] - 1:+7.1%}",
            flush=True,
        )
    return costs


def mark_of(result: dict) -> str:
    if result.get("skipped"):
        return "skipped"
    if result["right"]:
        return "right"
    return "known" if result.get("known") else "WRONG"


def mark_of_comparison(comparison: dict) -> str:
    if comparison.get("skipped"):
        return "skipped"
    if comparison["in_range"]:
        return "in"
    return "unsure" if comparison["uncertain"] else "OUT"


class Visit:
    """Prints each result, and writes all of them to the JSON file, when it is known."""

    def __init__(self, names: list[str], file: pathlib.Path | None) -> None:
        self.width = max(len(name) for name in names)
        self.file = file
        self.results: list[dict] = []
        self.comparisons: list[dict] = []
        heading = f"{'exhibit':{self.width}}  {'expected':23}  {'line':9}  {'s':>5}  {'turn':>4}"
        print(f"         {heading}  found", flush=True)

    def add(self, result: dict) -> None:
        self.results.append(result)
        self.tell(result, mark_of(result))

    def tell(self, result: dict, mark: str) -> None:
        seconds = f"{result['seconds']:5.1f}" if "seconds" in result else "    -"
        turn = f"{result['turn_seconds']:4.1f}" if "turn_seconds" in result else "   -"
        note = f" ({result['known']})" if mark == "known" else ""
        columns = f"{result['name']:{self.width}}  {result['expected']:23}  {result['line']:9}  {seconds}  {turn}"
        print(f"{mark:7}  {columns}  {result['said']}{note}", flush=True)
        self.write()

    def compare(self, comparison: dict) -> None:
        self.comparisons.append(comparison)
        mark = mark_of_comparison(comparison)
        print(f"{mark:7}  {comparison['name']:{self.width}}  {comparison['said']}", flush=True)
        self.write()

    def write(self) -> None:
        if self.file is None:
            return
        text = json.dumps({"exhibits": self.results, "fixed": self.comparisons}, indent=2)
        beside = self.file.with_name(self.file.name + ".new")
        beside.write_text(text + "\n")
        beside.replace(self.file)


def last_of_each(results: list[dict]) -> list[dict]:
    """Of programs that ran again, the last result counts."""
    return list({result["name"]: result for result in results}.values())


def print_counts(results: list[dict], seconds: float) -> None:
    ran = [result for result in results if not result.get("skipped")]
    clean = [result for result in ran if result["expected"] == "nothing"]
    planted = [result for result in ran if result["expected"] != "nothing"]
    known = sum(bool(result.get("known")) and not result["right"] for result in planted)
    print(
        f"{sum(r['right'] for r in planted)} of {len(planted)} planted programs right ({known} known not to be), "
        f"{sum(r['right'] for r in clean)} of {len(clean)} clean ones; {len(results) - len(ran)} skipped; "
        f"{seconds:.0f} s"
    )


def print_comparisons(comparisons: list[dict]) -> None:
    ran = [comparison for comparison in last_of_each(comparisons) if not comparison.get("skipped")]
    unsure = sum(c["uncertain"] for c in ran)
    print(
        f"{sum(c['in_range'] for c in ran)} of {len(ran)} in range; of {unsure} of the others, steps vary too much to tell",
        flush=True,
    )


def run_all(museum: Museum, chosen: list[Exhibit], others: list, jobs: int, visit: Visit) -> None:
    """Programs whose result does not depend on the time that the GPU idles run beside each other, as do `others`. The
    rest take turns afterwards."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        besides = [pool.submit(other) for other in others]
        shared = sorted((e for e in chosen if not e.alone), key=lambda exhibit: exhibit.native)  # nvcc takes long
        besides += [pool.submit(museum.judge, exhibit, False) for exhibit in shared]
        for future in concurrent.futures.as_completed(besides):
            visit.add(future.result())
    for _, _, result in museum.take_turns([(exhibit, False) for exhibit in chosen if exhibit.alone]):
        visit.add(result)


def run_pairs(museum: Museum, chosen: list[Exhibit], visit: Visit) -> None:
    """Those that other work on the machine made uncertain run once more, and then that counts."""
    compare_pairs(museum, chosen, visit)
    uncertain = {comparison["name"] for comparison in visit.comparisons if comparison["uncertain"]}
    if uncertain:
        print(f"once more: {len(uncertain)} whose steps vary too much to tell", flush=True)
        compare_pairs(museum, [exhibit for exhibit in chosen if exhibit.name in uncertain], visit)


def compare_pairs(museum: Museum, chosen: list[Exhibit], visit: Visit) -> None:
    known: dict[tuple[str, bool], dict] = {}
    in_order = sorted(chosen, key=lambda exhibit: exhibit.native)
    for exhibit, fixed, result in museum.take_turns([(e, fixed) for e in in_order for fixed in (False, True)]):
        known[exhibit.name, fixed] = result
        visit.tell(result, "fixed") if fixed else visit.add(result)
        if (exhibit.name, not fixed) in known:
            visit.compare(compare(exhibit, known[exhibit.name, False], known[exhibit.name, True]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=pathlib.Path, default=pathlib.Path("build/release/penstock"))
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--jobs", type=int, default=max(8, (os.cpu_count() or 0) // 4), help="programs at once that may share the GPU")
    parser.add_argument("--fixed", action="store_true", help="only run pairs: programs with their mistake and without")
    parser.add_argument("--overhead", action="store_true", help="only measure what the recorder costs")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    begin = time.monotonic()
    if problem := missing():
        print(f"doctor_museum: skipped: {problem}")
        return 0
    print(f"PyTorch and CUDA start in {time.monotonic() - begin:.1f} s", flush=True)
    begin = time.monotonic()
    chosen = [e for e in EXHIBITS if not options.only or any(part in e.name for part in options.only)]
    if options.fixed:
        chosen = [exhibit for exhibit in chosen if exhibit.fix]
    with tempfile.TemporaryDirectory() as name:
        museum = Museum(options.penstock.resolve(), pathlib.Path(name))
        if options.overhead:
            costs = overhead(museum.penstock, museum.folder)
            if options.json:
                options.json.write_text(json.dumps(costs, indent=2) + "\n")
            return 0
        others = [] if options.only or options.fixed else [museum.torchrun, museum.profiled]
        visit = Visit([exhibit.name for exhibit in chosen] + ["torch.profiler in the program"], options.json)
        if options.fixed:
            run_pairs(museum, chosen, visit)
            print_comparisons(visit.comparisons)
        else:
            run_all(museum, chosen, others, options.jobs, visit)
        results = last_of_each(visit.results)
        print_counts(results, time.monotonic() - begin)
    return 0 if all(mark_of(result) != "WRONG" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
