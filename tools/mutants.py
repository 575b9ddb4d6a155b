#!/usr/bin/env python3
"""Removes something of the sources, one thing at a time, and shows whether a test notices.

mutants.py [--all | --since REV] [--layer LAYER] [--only REGEX] [--sample N] [--jobs N] [--again] [--list] [--check]

tools/removals.py makes what is removed from the sources; tests/mutants.toml holds what no rule makes. Without --all,
only lines that changed count: since REV, or since this branch left main, or on main since the commit before.

Only the changed file is compiled, and only the programs that run it are linked. The tests that are named like the file
run first, then all tests of its layer. A mutant is noticed if tests fail, crash or do not end. Results are kept in
build/mutants, so that a run that was stopped goes on; --again judges anew what was not noticed. If something was not
noticed, or could not be judged, the exit status is 1.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
try:
    import tree_sitter  # noqa: F401
except ModuleNotFoundError:  # in the environment of the tools it is
    os.execv(ROOT / "tools" / "python.sh", ["python.sh", "tool", *sys.argv])

from kept_removals import LIST, kept_removals
from mutant import WORK, Mutant, Problem, layer_of, source_of, sources
from mutant_trees import DoesNotCompile, Module, Tree, build, programs_of
from removals import Removal, removals

PATIENCE_S = 1800  # with tests that should pass; a mutant has a multiple of what they took
SANITIZED = {"core", "device", "memory", "transfer", "decode", "data", "loader", "run"}  # the layers that the preset tsan builds
NO_TESTS = "its tests match none"
OUTCOMES = ("noticed", "not noticed", "not compiled", "broken", "as listed")


def shown(text: bytes) -> str:
    words = " ".join(text.decode().split())
    return words if len(words) <= 60 else f"{words[:40]} ... {words[-15:]}"


def generated(file: str) -> Iterator[Mutant]:
    source = source_of(file)
    for removal in removals(source, Path(file).suffix):
        races = removal.kind in ("lock", "order") and layer_of(file) in SANITIZED
        replacement = removal.replacement.encode()
        name = described(removal, source)
        yield Mutant(file, removal.start, removal.end, replacement, name, build="tsan" if races else "")


def described(removal: Removal, source: bytes) -> str:
    removed = shown(source[removal.start : removal.end])
    if removal.replacement in (";", "pass"):
        return f"without `{removed}`"
    return f"`{removed}` is `{shown(removal.replacement.encode())}`"


def changed_lines(since: str) -> dict[str, list[range]]:
    """For each file that differs from a commit, the lines that it has now."""
    found: dict[str, list[range]] = {}
    file = ""
    for line in git("diff", "--unified=0", "--no-prefix", since).splitlines():
        if line.startswith("+++ "):
            file = line[4:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            begin, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(file, []).append(range(begin, begin + max(count, 1)))
    for new in git("ls-files", "--others", "--exclude-standard").splitlines():
        found[new] = [range(1, sys.maxsize)]
    return found


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise Problem(done.stderr.strip())
    return done.stdout.strip()


def where_the_branch_began() -> str:
    try:
        base = git("merge-base", "HEAD", "main")
    except Problem:
        return "HEAD~1"
    return "HEAD~1" if base == git("rev-parse", "HEAD") else base


def first_failure(output: str) -> str:
    if failed := re.search(r"^(?:\[  FAILED  \]|FAILED|ERROR) (\S+?),?(?: |$)", output, re.M):
        return failed.group(1)
    running = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    return running[-1] if running else ""


def run_tests(command: list[str], environment: dict[str, str], patience: float) -> tuple[bool, str]:
    """True if the tests passed; otherwise says which failed, and how."""
    status, output = run_for(command, environment, patience)
    if status is None:
        return False, f"does not end: {first_failure(output)}"
    if re.search(r"^\[==========\] Running 0 tests|no tests ran|error: not found", output, re.M):
        return True, NO_TESTS
    if status == 0:
        return True, ""
    how = "" if status > 0 else f" (signal {-status})"
    sanitizer = re.search(r"(WARNING|ERROR): \w+Sanitizer: [\w -]+", output)
    return False, first_failure(output) + how + (f" {sanitizer.group(0)}" if sanitizer else "")


def run_for(command: list[str], environment: dict[str, str], patience: float) -> tuple[int | None, str]:
    """The exit status, None if the command did not end in time, and what it said. Nothing that it started runs on."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:  # a pipe ends only when all who hold it do
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=said, stderr=said, start_new_session=True
        )
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        said.seek(0)
        return status, said.read()


class Bench:
    """Judges mutants, several at a time."""

    def __init__(self, mutants: list[Mutant], jobs: int) -> None:
        self.trees: dict[str, Tree] = {}
        wanted: dict[str, set[str]] = collections.defaultdict(set)
        for mutant in mutants:
            wanted[mutant.preset].add(mutant.layer)
        for preset, layers in sorted(wanted.items()):
            if preset == "python":
                build("ci", ["penstock", "penstock_command", "penstock_recorder", "penstock_run", "fake_cuda"], jobs)
                self.trees[preset] = Module(WORK / "module", jobs)
            else:
                build(preset, sorted({f"test_{program}" for layer in layers for program in programs_of(layer)}), jobs)
                self.trees[preset] = Tree(ROOT / "build" / preset)
        self.baseline_lock = threading.Lock()
        self.baselines: dict[tuple[str, ...], concurrent.futures.Future[float]] = {}

    def patience(self, tree: Tree, program: str, chosen: str, repeat: int) -> float:
        """Sees that the tests pass while nothing is removed. Gives the seconds after which a mutant counts as hanging."""
        command, environment = tree.tests(program, chosen, 1, {})
        with self.baseline_lock:
            future = self.baselines.get(tuple(command))
            mine = future is None
            if mine:
                future = self.baselines[tuple(command)] = concurrent.futures.Future()
        if mine:
            begin = time.monotonic()
            passed, how = run_tests(command, environment, PATIENCE_S)
            if passed:
                future.set_result(time.monotonic() - begin)
            else:
                future.set_exception(Problem(f"the tests fail while it is there, too: {how}"))
        return 20 + 5 * repeat * future.result()

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """The outcome, and how it was noticed or why it was not judged."""
        shutil.rmtree(mutant.folder, ignore_errors=True)
        try:
            return self.judge_in(mutant, self.trees[mutant.preset])
        except DoesNotCompile as error:
            why = next((line for line in str(error).splitlines() if "error" in line.lower()), str(error))
            return ("broken" if mutant.is_kept else "not compiled"), why[:300]
        except Problem as error:
            return "broken", str(error)
        finally:
            shutil.rmtree(mutant.folder, ignore_errors=True)

    def judge_in(self, mutant: Mutant, tree: Tree) -> tuple[str, str]:
        write_source(mutant)
        objects = []
        if not mutant.file.endswith(".py"):
            objects = [tree.compile(mutant, source) for source in tree.sources_of(mutant)]
        linked: dict[str, dict[str, Path]] = {}
        ran = False
        for program, chosen in tree.rounds(mutant):
            if program not in linked:
                linked[program] = tree.prepare(mutant, program, objects)
            if not linked[program]:  # it does not run what changed
                continue
            patience = self.patience(tree, program, chosen, mutant.repeat)
            passed, how = run_tests(*tree.tests(program, chosen, mutant.repeat, linked[program]), patience)
            if not passed:
                return "noticed", how
            ran |= how != NO_TESTS
        return ("not noticed", "") if ran else ("broken", NO_TESTS)


def write_source(mutant: Mutant) -> None:
    """Writes the changed file, beside the headers of its folder: one that is beside a source is found there first."""
    folder = mutant.folder / "source" / Path(mutant.file).parent
    folder.mkdir(parents=True)
    for header in (ROOT / mutant.file).parent.glob("*.hpp"):
        shutil.copyfile(header, folder / header.name)
    (folder / Path(mutant.file).name).write_bytes(mutant.text)
    if mutant.file.endswith(".py"):
        try:
            compile(mutant.text, mutant.file, "exec")
        except SyntaxError as error:
            raise DoesNotCompile(str(error)) from None


class Results:
    """What came out, a line of JSON for each mutant: a run that was stopped goes on behind it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {result["key"]: result for result in map(json.loads, lines)}

    def add(self, mutant: Mutant, outcome: str, how: str, seconds: float) -> dict:
        result = {"key": mutant.key, "place": mutant.place, "name": mutant.name, "outcome": outcome, "how": how}
        self.known[mutant.key] = result | {"seconds": round(seconds, 1)}
        with self.path.open("a") as file:
            file.write(json.dumps(self.known[mutant.key]) + "\n")
        return self.known[mutant.key]


def judge_all(mutants: list[Mutant], options: argparse.Namespace) -> dict[str, dict]:
    results = Results(WORK / "results.jsonl")
    again = {"broken"} | ({"not noticed"} if options.again else set())
    left = [m for m in mutants if results.known.get(m.key, {"outcome": "broken"})["outcome"] in again]
    print(f"{len(mutants)} mutants, {len(mutants) - len(left)} of them judged before", flush=True)
    if left:
        bench = Bench(left, options.jobs)
        lock = threading.Lock()

        def judge(mutant: Mutant) -> None:
            begin = time.monotonic()
            outcome, how = bench.judge(mutant)
            with lock:
                results.add(mutant, outcome, how, time.monotonic() - begin)
                print(f"{outcome:12} {mutant.place} {mutant.name}: {how.strip()}", flush=True)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for _ in pool.map(judge, left):
                pass
    return results.known


def table(mutants: list[Mutant], known: dict[str, dict]) -> str:
    """By layer, how many came out how, and the seconds that each took."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    seconds: dict[str, float] = collections.defaultdict(float)
    for mutant in mutants:
        result = known.get(mutant.key, {"outcome": "as listed" if mutant.unnoticed else "", "seconds": 0})
        counts[mutant.layer][result["outcome"]] += 1
        seconds[mutant.layer] += result["seconds"]
    lines = [f"{'layer':10}{'made':>8}" + "".join(f"{outcome:>14}" for outcome in OUTCOMES) + f"{'s each':>8}"]
    for layer, count in sorted(counts.items()):
        judged = count.total() - count["as listed"] - count[""]
        each = f"{seconds[layer] / judged:8.1f}" if judged else ""
        lines.append(f"{layer:10}{count.total():8}" + "".join(f"{count[outcome]:14}" for outcome in OUTCOMES) + each)
    return "\n".join(lines)


def choose(kept: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """The kept mutants and those that are made, without what is kept already."""
    changed = None if options.all else changed_lines(options.since or where_the_branch_began())
    files = [file for file in sources() if changed is None or file in changed]
    shapes = {mutant.shape for mutant in kept}
    everything = [mutant for mutant in kept if mutant.file in files]
    for file in files:
        everything += (mutant for mutant in generated(file) if mutant.shape not in shapes)
    chosen = (
        mutant
        for mutant in everything
        if options.layer in (None, mutant.layer)
        and (changed is None or any(overlap(mutant.lines, lines) for lines in changed[mutant.file]))
        and re.search(options.only, f"{mutant.place} {mutant.name}")
        and int(mutant.key, 16) % options.sample == 0
    )
    return sorted(chosen, key=lambda mutant: (mutant.layer, mutant.file, mutant.start))


def overlap(some: range, others: range) -> bool:
    return some.start < others.stop and others.start < some.stop


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="of all lines")
    parser.add_argument("--since", metavar="REV", help="of the lines that changed since this commit")
    parser.add_argument("--layer", help="of one layer alone: core, ..., cli, recorder or python")
    parser.add_argument("--only", metavar="REGEX", default="", help="those whose place or description matches")
    parser.add_argument("--sample", metavar="N", type=int, default=1, help="one of N, always the same")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or os.cpu_count() or 1))
    parser.add_argument("--again", action="store_true", help="judge anew what was not noticed")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    parser.add_argument("--check", action="store_true", help="only see that each kept removal is still found")
    options = parser.parse_args()

    kept, wrong = kept_removals()
    for problem in wrong:
        print(f"{LIST.relative_to(ROOT)}: {problem}")
    if wrong or options.check:
        print(f"{len(kept) + len(wrong)} removals are kept, {len(wrong)} of them are not found once")
        return 1 if wrong else 0

    mutants = choose(kept, options)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.place} {mutant.name}" + (f" ({mutant.unnoticed})" if mutant.unnoticed else ""))
        known = {}
    else:
        known = judge_all([mutant for mutant in mutants if not mutant.unnoticed], options)
    missed = [mutant for mutant in mutants if known.get(mutant.key, {}).get("outcome") in ("not noticed", "broken")]
    for mutant in missed:
        print(f"{known[mutant.key]['outcome'].upper():13}{mutant.place} {mutant.name}")
    print(table(mutants, known))
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        sys.exit(f"mutants.py: {problem}")
