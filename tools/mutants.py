#!/usr/bin/env python3
"""Removes the guards that tests/mutants lists, one at a time, and shows whether a test notices.

mutants.py [--only REGEX] [--layer LAYER] [--build PRESET] [--jobs N] [--check]

A list, tests/mutants/LAYER.toml, holds tables [[guard]]:

name       what is removed, in a few words
file       the source, from the repository's root
text       what is replaced; it stands in the file once
with       what stands there instead, "" where left out
tests      which tests should notice, as --gtest_filter takes it (python: pytest's arguments); left out: the layer's
program    the layer of the test program that runs, where it is not the list's own
build      ci (where left out), asan or tsan: the preset whose test program notices; python has one of its own
repeat     how often the tests run at most, 1 where left out
unnoticed  why no test can notice: what is equivalent, or not observable here. It is not run.

Only the mutated file is compiled, and the test program linked anew, or the command or the recorder that it runs, so that
a guard takes seconds. It fails where a text does not stand in its file once, where a mutant does not compile, where the
tests fail without it, and where one that should be noticed is not. A mutant is noticed where the tests fail, crash or do
not end.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    sys.exit("mutants.py: waived: this needs Python 3.11 or newer")

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"
WORK = ROOT / "build" / "mutants"
# The same options as in the test presets.
SANITIZERS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:external_symbolizer_path=/usr/bin/addr2line",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=50:external_symbolizer_path=/usr/bin/addr2line",
}
COMMAND = "penstock"
RECORDER = "libpenstock_recorder.so"  # beside the command
PATIENCE_S = 600  # with tests that should pass; a mutant has a multiple of what they took


class Problem(Exception):
    """A guard cannot be judged; says why."""


@dataclasses.dataclass(frozen=True)
class Guard:
    layer: str
    name: str
    file: str
    text: str
    replacement: str
    tests: str
    program: str
    build: str
    repeat: int
    unnoticed: str

    @property
    def place(self) -> str:
        before, found, _ = (ROOT / self.file).read_text().partition(self.text)
        return f"{self.file}:{before.count(chr(10)) + 1}" if found else self.file

    @functools.cached_property
    def folder(self) -> Path:
        digest = hashlib.sha256(f"{self.file}\0{self.text}\0{self.replacement}".encode()).hexdigest()
        return WORK / self.layer / digest[:12]

    def matches(self) -> int:
        file = ROOT / self.file
        return file.read_text().count(self.text) if file.is_file() else 0


KEYS = {"name", "file", "text", "with", "tests", "program", "build", "repeat", "unnoticed"}


def read_list(path: Path) -> list[Guard]:
    guards = []
    for entry in tomllib.loads(path.read_text()).get("guard", []):
        unknown = entry.keys() - KEYS
        if unknown or not {"name", "file", "text"} <= entry.keys():
            raise Problem(
                f"{path.name}: {entry.get('name', entry)}: needs name, file and text; unknown: {sorted(unknown)}"
            )
        guards.append(
            Guard(
                layer=path.stem,
                name=entry["name"],
                file=entry["file"],
                text=entry["text"],
                replacement=entry.get("with", ""),
                tests=entry.get("tests", ""),
                program=entry.get("program", path.stem),
                build="python" if path.stem == "python" else entry.get("build", "ci"),
                repeat=entry.get("repeat", 1),
                unnoticed=entry.get("unnoticed", ""),
            )
        )
    return guards


def run(command: list[str] | str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, shell=isinstance(command, str), capture_output=True, text=True)
    if done.returncode != 0:
        raise Problem(f"{done.stdout}{done.stderr}"[-3000:])
    return done.stdout


class Tree:
    """A build tree, with the commands of its compiler and its linker."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.commands = {}  # of each source; several are compiled as one where it is a unity build
        for entry in json.loads((self.folder / "compile_commands.json").read_text()):
            # Absolute or not, as the version of CMake has it; ninja has it relative.
            entry["output"] = os.path.relpath(self.folder / entry["output"], self.folder)
            sources = [entry["file"]]
            if "/Unity/" in entry["file"]:
                sources = re.findall(r'^#include "(.*)"', Path(entry["file"]).read_text(), re.M)
            self.commands |= {os.path.relpath(source, ROOT): entry for source in sources}
        self.lock = threading.Lock()

    @functools.cached_property
    def dependents(self) -> dict[str, list[str]]:
        """For each header, the sources that include it."""
        objects = {entry["output"]: source for source, entry in self.commands.items()}
        found: dict[str, list[str]] = {}
        source: str | None = None
        for line in run(["ninja", "-t", "deps"], self.folder).splitlines():
            if line.startswith("    "):
                header = os.path.relpath(self.folder / line.strip(), ROOT)
                if source and not header.startswith(".."):
                    found.setdefault(header, []).append(source)
            else:
                source = objects.get(line.split(":")[0])
        return found

    def program(self, guard: Guard) -> str:
        """The test program, from the folder."""
        return f"tests/test_{guard.program}"

    def target(self, guard: Guard) -> str:
        """What is linked, from the folder: the test program, the command that it runs, or the recorder that this loads."""
        program = self.program(guard)
        if guard.file not in self.commands or self.commands[guard.file]["output"] in self.link_command(program):
            return program
        return {"cli": COMMAND, "recorder": RECORDER}.get(Path(guard.file).parts[0], program)

    @functools.cache
    def link_command(self, target: str) -> list[str]:
        words = shlex.split(run(["ninja", "-t", "commands", target], self.folder).splitlines()[-1])
        begin = words.index("&&") + 1
        return words[begin : words.index("&&", begin)]

    def sources_of(self, guard: Guard) -> list[str]:
        if guard.file in self.commands:
            return [guard.file]
        with self.lock:
            dependents = self.dependents.get(guard.file, [])
        linked = self.link_command(self.target(guard))
        sources = [s for s in dependents if s.startswith("src/") or self.commands[s]["output"] in linked]
        if not sources:
            raise Problem(f"{guard.file} is compiled into nothing in {self.folder}")
        return sources

    def compile(self, guard: Guard, source: str) -> tuple[str, Path]:
        """Compiles `source` with the guard removed. Gives the object that it replaces, and the new one."""
        entry = self.commands[source]
        words = shlex.split(entry["command"])
        overlay = guard.folder / "source"
        own = overlay / source
        if not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, own)
        compiled = Path(entry["file"])
        if compiled != ROOT / source:
            own = overlay / compiled.name
            own.write_text(self.unit_with_own_headers(guard, compiled.read_text(), overlay))
        target = guard.folder / guard.build / (source.replace("/", "_") + ".o")
        target.parent.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{overlay / folder}" for folder in ("src", "include", "tests", "cli", "python/src", "")]
        includes += [f"-iquote{root / Path(source).parent}" for root in (overlay, ROOT)]
        words[words.index("-o") + 1] = str(target)
        words[words.index("-c") + 1] = str(own)
        first = next(i for i, word in enumerate(words) if word.startswith("-I"))
        run([*words[:first], *includes, *words[first:], "-O1", "-g0", "-w"], Path(entry["directory"]))
        return entry["output"], target

    def unit_with_own_headers(self, guard: Guard, unit: str, overlay: Path) -> str:
        """The unit, with all sources of the guard's folder beside its headers: from two places, these would be there twice."""
        folder = Path(guard.file).parent
        for name in re.findall(rf'^#include "{ROOT / folder}/([^/]*)"', unit, re.M):
            if not (overlay / folder / name).exists():
                shutil.copyfile(ROOT / folder / name, overlay / folder / name)
        return unit.replace(f'"{ROOT / folder}/', f'"{overlay / folder}/')

    def link(self, guard: Guard, objects: list[tuple[str, Path]]) -> Path:
        words = list(self.link_command(self.target(guard)))
        linked = guard.folder / guard.build / Path(self.target(guard)).name
        words[words.index("-o") + 1] = str(linked)
        for original, own in objects:
            if original in words:
                words[words.index(original)] = str(own)
            else:
                # Before the library: its own member is then not asked for.
                libraries = ("libpenstock_command.a", "libpenstock.a")
                words.insert(next(i for i, word in enumerate(words) if word.endswith(libraries)), str(own))
        run([*words, "-Wl,--strip-debug"], self.folder)
        if linked.name == COMMAND:
            (linked.parent / RECORDER).symlink_to(self.folder / RECORDER)
        return linked

    def tests(self, guard: Guard, linked: Path | None) -> tuple[list[str], dict[str, str]]:
        """The command that runs the tests of a guard, with or without the program linked for it, and its environment."""
        environment = SANITIZERS
        program = linked or self.folder / self.program(guard)
        if variable := {COMMAND: "PENSTOCK_COMMAND", RECORDER: "PENSTOCK_RECORDER"}.get(program.name):
            environment = SANITIZERS | {variable: str(program)}
            program = self.folder / self.program(guard)
        command = [str(program), "--gtest_fail_fast", "--gtest_color=no", f"--gtest_repeat={guard.repeat}"]
        return [*command, f"--gtest_filter={guard.tests or '*'}"], environment


class Module(Tree):
    """The build tree of the module that Python imports."""

    def __init__(self, folder: Path):
        self.python = ROOT / "build" / "python" / "venv" / "bin" / "python"
        run([ROOT / "tools" / "python.sh", "environment"], ROOT)
        options = [
            f"Python_EXECUTABLE={self.python}",
            "CMAKE_BUILD_TYPE=Release",
            "CMAKE_CXX_FLAGS=-O1",
            "CMAKE_EXPORT_COMPILE_COMMANDS=ON",
            "PENSTOCK_UNITY=OFF",
            "PENSTOCK_FMT_HEADER_ONLY=OFF",
        ]
        defined = [f"-D{option}" for option in options]
        run(["cmake", "-S", ROOT / "python", "-B", folder, "-G", "Ninja", *defined], ROOT)
        run(["cmake", "--build", folder], ROOT)
        super().__init__(folder)
        self.module = next(folder.glob("_core*.so"))
        self.lay_out(folder)

    def target(self, guard: Guard) -> str:
        return self.module.name

    def lay_out(self, folder: Path, module: Path | None = None) -> Path:
        """Makes a package of the sources, of those in the folder first, and the module; where Python looks for it."""
        package = folder / "site" / "penstock"
        shutil.rmtree(package, ignore_errors=True)
        package.mkdir(parents=True)
        for file in filter(Path.is_file, (ROOT / "python" / "penstock").iterdir()):
            mutated = folder / "source" / "python" / "penstock" / file.name
            (package / file.name).symlink_to(mutated if mutated.exists() else file)
        (package / self.module.name).symlink_to(module or self.module)
        return package.parent

    def tests(self, guard: Guard, linked: Path | None) -> tuple[list[str], dict[str, str]]:
        mutated = guard.folder.exists()
        site = self.lay_out(guard.folder, linked) if mutated else self.folder / "site"
        driver = ROOT / "build" / "ci" / "tests" / "fake_driver" / "libfake_cuda.so"
        environment = {"PYTHONPATH": str(site), "PENSTOCK_FAKE_DRIVER": str(driver)}
        command = [str(self.python), "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        return [*command, *shlex.split(guard.tests)], environment


def mutate(guard: Guard) -> None:
    folder = guard.folder / "source" / Path(guard.file).parent
    folder.mkdir(parents=True)
    for header in (ROOT / guard.file).parent.glob("*.hpp"):
        shutil.copyfile(header, folder / header.name)  # one that is beside a source is found there first
    text = (ROOT / guard.file).read_text()
    (folder / Path(guard.file).name).write_text(text.replace(guard.text, guard.replacement))


def first_failure(output: str) -> str:
    failed = re.search(r"^\[  FAILED  \] (\S+?),? ", output, re.M) or re.search(r"^FAILED (\S+)", output, re.M)
    if failed:
        return failed.group(1)
    running = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    return running[-1] if running else ""


def run_tests(command: list[str], environment: dict[str, str], patience: float) -> tuple[bool, str]:
    """True if the tests passed; otherwise says which failed, and how."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        return False, f"does not end: {first_failure(output.decode(errors='replace'))}"
    output = done.stdout + done.stderr
    if re.search(r"^\[==========\] Running 0 tests|no tests ran|error: not found", output, re.M):
        raise Problem(f"its tests match none: {output[-500:]}")
    if done.returncode == 0:
        return True, ""
    how = "" if done.returncode > 0 else f" (signal {-done.returncode})"
    sanitizer = re.search(r"(WARNING|ERROR): \w+Sanitizer: [\w -]+", output)
    return False, first_failure(output) + how + (f" {sanitizer.group(0)}" if sanitizer else "")


class Bench:
    """Judges guards, several at a time."""

    def __init__(self, presets: set[str]) -> None:
        self.trees = {preset: Tree(ROOT / "build" / preset) for preset in presets - {"python"}}
        if "python" in presets:
            self.trees["python"] = Module(WORK / "module")
        self.baseline_lock = threading.Lock()
        self.baselines: dict[tuple[str, ...], concurrent.futures.Future[float]] = {}

    def patience(self, guard: Guard) -> float:
        """Checks that the tests pass while nothing is removed. Gives the seconds after which a mutant counts as hanging."""
        shutil.rmtree(guard.folder, ignore_errors=True)
        with self.baseline_lock:
            command, environment = self.trees[guard.build].tests(dataclasses.replace(guard, repeat=1), None)
            future = self.baselines.get(tuple(command))
            mine = future is None
            if mine:
                future = self.baselines[tuple(command)] = concurrent.futures.Future()
        if mine:
            begin = time.monotonic()
            try:
                passed, how = run_tests(command, environment, PATIENCE_S)
                if not passed:
                    raise Problem(f"the tests fail while it is there, too: {how}")
                future.set_result(time.monotonic() - begin)
            except Problem as problem:
                future.set_exception(problem)
        return 20 + 5 * guard.repeat * future.result()

    def judge(self, guard: Guard) -> tuple[bool, str]:
        tree = self.trees[guard.build]
        patience = self.patience(guard)
        mutate(guard)
        linked = None
        if not guard.file.endswith(".py"):
            linked = tree.link(guard, [tree.compile(guard, source) for source in tree.sources_of(guard)])
        passed, how = run_tests(*tree.tests(guard, linked), patience)
        shutil.rmtree(guard.folder)
        return not passed, how


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="REGEX", default="", help="guards whose place or name matches")
    parser.add_argument("--layer", help="one list alone")
    parser.add_argument("--build", help="the guards of one preset alone: ci, asan, tsan or python")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or os.cpu_count() or 1))
    parser.add_argument("--check", action="store_true", help="only see that each text still stands in its file")
    options = parser.parse_args()

    guards = [guard for path in sorted(LISTS.glob("*.toml")) for guard in read_list(path)]
    stale = [guard for guard in guards if guard.matches() != 1]
    for guard in stale:
        print(f"{guard.layer}: {guard.name}: its text stands {guard.matches()} times in {guard.file}")
    if stale or options.check:
        print(f"{len(guards)} guards are listed, {len(stale)} of them do not match the source")
        return 1 if stale else 0

    chosen = [
        guard
        for guard in guards
        if options.layer in (None, guard.layer)
        and options.build in (None, guard.build)
        and re.search(options.only, f"{guard.place} {guard.name}")
    ]
    to_run = [guard for guard in chosen if not guard.unnoticed]
    presets = {guard.build for guard in to_run}
    # Python's tests need the fake driver of the others.
    for preset in sorted({"ci" if preset == "python" else preset for preset in presets}):
        run([ROOT / "tools" / "build.sh", preset], ROOT)
    bench = Bench(presets)
    noticed, missed, broken = 0, [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        judging = {pool.submit(bench.judge, guard): guard for guard in to_run}
        for future in concurrent.futures.as_completed(judging):
            guard = judging[future]
            try:
                seen, how = future.result()
            except Problem as problem:
                broken.append(guard)
                print(f"BROKEN       {guard.place} {guard.name}: {problem}", flush=True)
                continue
            if seen:
                noticed += 1
                print(f"noticed      {guard.place} {guard.name}: {how}", flush=True)
            else:
                missed.append(guard)
                print(f"NOT NOTICED  {guard.place} {guard.name}", flush=True)
    for guard in chosen:
        if guard.unnoticed:
            print(f"as listed    {guard.place} {guard.name}: {guard.unnoticed}")
    print(
        f"{len(chosen)} guards: {noticed} noticed when removed, {len(missed)} not, {len(broken)} could not be judged, "
        f"{len(chosen) - len(to_run)} listed with the reason why no test can"
    )
    return 1 if missed or broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        sys.exit(f"mutants.py: {problem}")
