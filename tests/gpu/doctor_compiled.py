#!/usr/bin/env python3
"""Runs a compiled program under `penstock doctor`, with one mistake at a time, and checks what is found:
doctor_compiled.py --penstock build/release/penstock [--compiler c++]

It needs a GPU, a C++ compiler, and CUPTI. Without a GPU it says so and does nothing.
"""

import argparse
import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).with_name("compiled_program.cpp")
# What is found, and what is not although the program is alike.
EXPECTED = {
    "again": ({"same-data-again", "pageable-copies"}, set()),
    "fresh": ({"pageable-copies"}, {"same-data-again"}),
    "wait": ({"synchronizations"}, {"same-data-again"}),
    "allocate": ({"device-allocations"}, set()),
    "clean": (set(), {"same-data-again", "pageable-copies", "synchronizations", "device-allocations"}),
}


def has_gpu() -> bool:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def judge(penstock: pathlib.Path, program: pathlib.Path, mistake: str) -> list[str]:
    """Runs the program with one mistake, and returns what is wrong with the report."""
    out = program.with_suffix(".json")
    run = subprocess.run(
        [penstock, "doctor", "--json", out, "--", program, mistake], capture_output=True, text=True, timeout=60, check=False
    )
    report = json.loads(out.read_text()) if out.exists() else {}
    if run.returncode != 0 or not report.get("processes"):
        return [f"exit status {run.returncode}: {run.stderr.strip()}"]
    process = report["processes"][0]
    changes = {finding["id"]: finding["change"] for finding in process["findings"]}
    print(f"{mistake}: {process['devices'][0]['steps']} steps; {list(changes)}")
    wanted, unwanted = EXPECTED[mistake]
    problems = [f"{name} was found" for name in unwanted & changes.keys()]
    problems += [f"{name} was not found" for name in wanted - changes.keys()]
    problems += [f"{name} advises Python: {text}" for name, text in changes.items() if "torch" in text or "loader" in text]
    unknown = {name for part in process["not_examined"] for name in part["names"]}
    if mistake in ("again", "fresh") and "same-data-again" in unknown:
        problems.append("contents of copies are not known")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=pathlib.Path, default=pathlib.Path("build/release/penstock"))
    parser.add_argument("--compiler", default="c++")
    options = parser.parse_args()
    if not has_gpu():
        print("doctor_compiled: skipped: there is no GPU")
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "compiled_program"
        subprocess.run([options.compiler, "-std=c++20", "-O2", SOURCE, "-o", program, "-ldl"], check=True)
        for mistake in EXPECTED:
            for problem in judge(options.penstock.resolve(), program, mistake):
                print(f"WRONG  {mistake}: {problem}")
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
