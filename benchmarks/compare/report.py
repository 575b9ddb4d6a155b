"""The table, the file, and the picture."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from .setting import Result


def markdown(results: list[Result], about: dict[str, Any]) -> str:
    lines = ["# penstock and its peers", "", ", ".join(f"{name} {value}" for name, value in about.items()), ""]
    for workload in dict.fromkeys(result.workload for result in results):
        rows = [result for result in results if result.workload == workload]
        lines += [f"## {workload}", "", *_table(rows)]
        steps = [result for result in rows if result.figures.get("steps")]
        if steps:
            lines += ["", f"{workload}, beside a consumer that computes:", "", *_steps_table(steps)]
        lines += ["", *(f"- {r.contender}: {r.status}" for r in rows if r.status != "measured"), ""]
    return "\n".join(lines).rstrip() + "\n"


COLUMNS = {
    "copy_p50_ms": ("ms of a copy of 51 KB, median", "{:.3f}"),
    "copy_p99_ms": ("p99", "{:.3f}"),
    "samples_per_second": ("samples/s", "{:,.0f}"),
    "stored_gbps": ("GB/s as stored", "{:.2f}"),
    "batch_us": ("µs a batch", "{:,.0f}"),
    "step_ms": ("ms a step", "{:.2f}"),
    "alone_samples_per_second": ("compute alone, samples/s", "{:,.0f}"),
    "share_of_compute": ("of compute alone", "{:.1%}"),
    "gbps": ("GB/s", "{:.2f}"),
    "thread_us": ("µs of the thread", "{:,.1f}"),
    "processor_us": ("µs of its processor", "{:,.1f}"),
    "done_us": ("µs until there", "{:,.1f}"),
    "thread_us_after_rest": ("µs of the thread after 2 ms of other work", "{:,.1f}"),
    "processor_us_after_rest": ("µs of its processor after other work", "{:,.1f}"),
    "ratio": ("penstock's best is", "{:.1f} x"),
}


def _table(rows: list[Result]) -> list[str]:
    measured = [row for row in rows if row.verified]
    if not measured:
        return ["Nothing was measured."]
    best = max((_speed(row) for row in measured if row.ours), default=0.0)
    figures = {id(row): dict(row.figures) for row in measured}
    for row in measured:
        if best and _speed(row):
            figures[id(row)]["ratio"] = best / _speed(row)
    keys = [key for key in COLUMNS if any(key in f for f in figures.values())]
    lines = _lines(["contender", *(COLUMNS[key][0] for key in keys)])
    for row in measured:
        cells = [COLUMNS[key][1].format(figures[id(row)][key]) if key in figures[id(row)] else "" for key in keys]
        option = f" ({row.option})" if isinstance(row.option, int) and row.option else ""
        lines.append(f"| {row.contender}{option} | " + " | ".join(cells) + " |")
    return lines


def _speed(row: Result) -> float:
    """A figure of which more is better; 0 if there is none."""
    if "samples_per_second" in row.figures:
        return row.figures["samples_per_second"]
    for key in ("batch_us", "done_us", "thread_us"):
        if key in row.figures:
            return 1 / row.figures[key]
    return 0.0


def _steps_table(rows: list[Result]) -> list[str]:
    lines = _lines(["contender", "step alone, ms", "step fed, ms", "compute slowed by", "exposed, ms", "of the step"])
    for row in rows:
        for step in row.figures["steps"]:
            lines.append(
                f"| {row.contender} | {step['alone_ms']:.2f} | {step['fed_ms']:.2f} | {step['slowdown']:.1%} "
                f"| {step['exposed_ms']:.3f} | {step['exposed_share']:.2%} |"
            )
    return lines


def _lines(head: list[str]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]


def write_json(file: str, results: list[Result], about: dict[str, Any]) -> None:
    content = {
        "about": about,
        "results": [dataclasses.asdict(result) | {"status": result.status} for result in results],
    }
    pathlib.Path(file).write_text(json.dumps(content, indent=2, default=str) + "\n")
