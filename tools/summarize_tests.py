#!/usr/bin/env python3
"""Prints the failures and "N passed, N failed, N skipped" of JUnit files, as ctest and GoogleTest write them.

A program that ctest ran whole (program/...) counts only if it failed.

summarize_tests.py [--must-run REGEX] [--but-for REGEX] FILE...

Fails if a test failed or there was none. With --must-run, it fails too if of the tests whose SUITE.NAME matches REGEX
none passed, or one was skipped for a reason that does not match the REGEX of --but-for.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree


LINES_OF_A_FAILURE = 60


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def is_excused(case: ElementTree.Element, reasons: str | None) -> bool:
    skipped = case.find("skipped")
    return reasons is not None and skipped is not None and bool(re.search(reasons, skipped.get("message") or ""))


def without_passed_tests(text: str) -> list[str]:
    """What GoogleTest printed, without the tests that passed: one that never ended is then in the last line."""
    lines: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith(("[       OK ]", "[  SKIPPED ]")) and lines and lines[-1].startswith("[ RUN      ]"):
            lines.pop()
        elif line and not line.startswith(("[-----", "[=====")):
            lines.append(line)
    return lines


def show_failure(file: str, name: str, case: ElementTree.Element) -> None:
    texts = [case.findtext("system-out") or ""] + [
        problem.text or "" for problem in case.findall("failure") + case.findall("error")
    ]
    print(f"FAILED: {name} ({file})")
    for line in without_passed_tests("\n".join(texts))[:LINES_OF_A_FAILURE]:
        print(f"    {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--must-run", metavar="REGEX")
    parser.add_argument("--but-for", metavar="REGEX")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()

    counts = {"passed": 0, "failed": 0, "skipped": 0}
    required = {"passed": 0, "failed": 0, "skipped": 0}
    for file in options.files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            result = outcome(case)
            suite, name = case.get("classname"), case.get("name")
            if name.startswith("program/") and result == "passed":
                continue  # What counts is its tests, which are in a file of their own.
            counts[result] += 1
            name = name if suite == name else f"{suite}.{name}"
            if result == "failed":
                show_failure(file, name, case)
            if options.must_run and re.search(options.must_run, name) and not is_excused(case, options.but_for):
                required[result] += 1
                if result == "skipped":
                    print(f"skipped: {name}")

    if options.must_run and (required["passed"] == 0 or required["skipped"] > 0):
        print(f"of the tests that must run here: {required['passed']} passed, {required['skipped']} skipped")
        counts["failed"] = max(counts["failed"], 1)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if counts["passed"] > 0 and counts["failed"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
