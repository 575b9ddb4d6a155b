#!/usr/bin/env python3
"""The results of `make gpu-bench`, and the page that shows them.

    results.py gather build     what the benchmarks wrote there, as build/gpu-results/MACHINE.json
    results.py keep FILE        such a file for benchmarks/results, and docs/performance.md with it
    results.py write            docs/performance.md from benchmarks/results

benchmarks/results has one file for each kind of machine: the newest of what each part of the benchmarks wrote there.
benchmarks/rows.py has the rows of the page and their goals.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

from rows import ROWS, Cell, Row

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
# The file below build of each part that rows read, and how many GPUs it needs.
PARTS = {
    "engine": ("gpu-bench.json", 1),
    "loader": ("gpu-loader.json", 1),
    "recorder": ("gpu-recorder.json", 1),
    "starts": ("gpu-starts.json", 1),
    "compare": ("gpu-compare.json", 1),
    "gains": ("gpu-gains.json", 1),
    "run": ("gpu-run.json", 1),
    "park": ("gpu-park.json", 1),
    "replay": ("gpu-replay.json", 1),
    "pictures": ("gpu-pictures.json", 1),
    "training": ("gpu-training.json", 1),
    "groups": ("gpu-groups.json", 2),
    "processes": ("gpu-processes.json", 2),
}


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def gather(build: pathlib.Path, gpus: list[str], driver: str, commit: str | None) -> dict[str, Any]:
    parts = {}
    for name, (file, needed) in PARTS.items():
        if len(gpus) >= needed and (build / file).exists():
            parts[name] = json.loads((build / file).read_text())
    if not parts:
        sys.exit(f"results.py: {build} holds nothing that a benchmark wrote")
    newest = max((build / PARTS[name][0]).stat().st_mtime for name in parts)
    return {
        "machine": f"{slug(gpus[0])}-x{len(gpus)}",
        "gpus": gpus,
        "driver": driver,
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.datetime.fromtimestamp(newest, datetime.timezone.utc).date().isoformat(),
        "commit": commit,
        "older": {},
        "missing": [name for name, (_, needed) in PARTS.items() if len(gpus) >= needed and name not in parts],
        "parts": parts,
    }


def text_of(value: Any, depth: int = 0) -> str:
    """JSON with a line for each entry of the outer levels that is long."""
    text = json.dumps(value, ensure_ascii=False)
    if depth > 3 or not isinstance(value, dict | list) or len(text) < 100:
        return text
    if isinstance(value, list):
        inner, ends = [text_of(each, depth + 1) for each in value], "[]"
    else:
        inner = [f"{json.dumps(key, ensure_ascii=False)}: {text_of(each, depth + 1)}" for key, each in value.items()]
        ends = "{}"
    return ends[0] + "\n" + ",\n".join(" " * (depth + 1) + each for each in inner) + "\n" + " " * depth + ends[1]


def machine() -> tuple[list[str], str]:
    """The GPUs' names, and the driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(", ")[0] for line in lines], lines[0].split(", ")[1]


def commit_here() -> str | None:
    """Of the sources, or what COMMIT says if they are no clone."""
    described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(described, capture_output=True, text=True, check=False)
    return found.stdout.strip() or os.environ.get("COMMIT")


def cell_of(row: Row, run: dict[str, Any]) -> Cell | None:
    """What the run has of the row; None if it was not measured."""
    part = run["parts"].get(row.part)
    if part is None:
        return None
    try:
        return row.read(part)
    except KeyError:
        return None


def shown(cell: Cell | None) -> str:
    if cell is None:
        return "not measured"
    theirs = f" ({cell.theirs})" if cell.theirs else ""
    return f"{cell.ours}{theirs}{'' if cell.met is not False else ', **missed**'}"


def name_of(run: dict[str, Any]) -> str:
    count = len(run["gpus"])
    return f"{count} {run['gpus'][0]}" if count > 1 else run["gpus"][0]


def origin_of(run: dict[str, Any]) -> str:
    return f"{run['date']}, commit {run['commit'] or 'not known'}"


def about(runs: list[dict[str, Any]]) -> list[str]:
    lines = ["No run is kept yet: `make gpu-bench` makes one."] if not runs else []
    for run in runs:
        older: dict[str, list[str]] = {}
        for part, origin in run["older"].items():
            older.setdefault(origin, []).append(part)
        missing = "".join(f" Of {origin}: {', '.join(parts)}." for origin, parts in older.items())
        missing += f" Not run: {', '.join(run['missing'])}." if run["missing"] else ""
        torch = f", PyTorch {run['parts']['compare']['about']['PyTorch']}" if "compare" in run["parts"] else ""
        lines.append(
            f"- **{name_of(run)}**: {origin_of(run)}, driver {run['driver']}, {run['cores']} cores{torch}.{missing}"
        )
    return lines


def answers(runs: list[dict[str, Any]]) -> list[str]:
    """The first lines of the page, each of the first machine that measured it."""
    lines = []
    for row in ROWS:
        if row.answers:
            cells = [(cell, name_of(run)) for run in runs if (cell := cell_of(row, run)) is not None]
            text = "".join(f"**{cell.ours}**; {row.beside}: {cell.theirs} ({name})" for cell, name in cells[:1])
            lines.append(f"- {row.work}: {text or 'not measured'}")
    return lines


def rows_of(runs: list[dict[str, Any]]) -> list[str]:
    lines = ["| work | beside it | goal | measured | on |", "| --- | --- | --- | --- | --- |"]
    for row in ROWS:
        cells = [(cell_of(row, run), name_of(run)) for run in runs if len(run["gpus"]) >= PARTS[row.part][1]]
        measured = [(cell, machine) for cell, machine in cells if cell is not None]
        for cell, machine in measured or [(None, "")]:
            lines.append(f"| {row.work} | {row.beside} | {row.goal} | {shown(cell)} | {machine} |")
    return lines


def write_block(page: str, kind: str, key: str, lines: list[str]) -> str:
    """The page with these lines between the marks of `key`. Raises ValueError if it does not have the marks once."""
    begin, end = f"<!-- {kind}: {key} -->", f"<!-- /{kind} -->"
    block = "\n".join([begin, "", *lines, "", end])
    page, count = re.subn(re.escape(begin) + r"\n.*?" + re.escape(end), lambda _: block, page, flags=re.S)
    if count != 1:
        raise ValueError(f"{count} blocks {begin} ... {end}, not one")
    return page


def page_with(text: str, runs: list[dict[str, Any]]) -> str:
    """The page with its marked blocks made from the runs. Raises ValueError if a block is not there once."""
    for key, lines in (("answers", answers(runs)), ("about", about(runs)), ("rows", rows_of(runs))):
        text = write_block(text, "results", key, lines)
    return text


def kept() -> list[dict[str, Any]]:
    """The kept runs: one GPU before several."""
    runs = [json.loads(file.read_text()) for file in KEPT.glob("*.json")]
    return sorted(runs, key=lambda run: (len(run["gpus"]), run["machine"]))


def keep(file: pathlib.Path) -> None:
    """Parts that the run lacks stay as an earlier one measured them, with its date."""
    run = json.loads(file.read_text())
    place = KEPT / f"{run['machine']}.json"
    before = json.loads(place.read_text()) if place.exists() else {"parts": {}}
    for part in [name for name in run["missing"] if name in before["parts"]]:
        run["missing"].remove(part)
        run["parts"][part] = before["parts"][part]
        run["older"][part] = before["older"].get(part, origin_of(before))
    KEPT.mkdir(exist_ok=True)
    place.write_text(text_of(run) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["gather", "keep", "write"])
    parser.add_argument("path", nargs="?", type=pathlib.Path)
    arguments = parser.parse_args()
    if (arguments.path is None) != (arguments.verb == "write"):
        parser.error("gather needs the build folder, keep a file, and write nothing")
    if arguments.verb == "gather":
        run = gather(arguments.path, *machine(), commit_here())
        place = arguments.path / "gpu-results" / f"{run['machine']}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text_of(run) + "\n")
        print("\n".join([*about([run]), "", *rows_of([run]), "", f"To keep it: benchmarks/results.py keep {place}"]))
        return 0
    if arguments.verb == "keep":
        keep(arguments.path)
    PAGE.write_text(page_with(PAGE.read_text(), kept()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
