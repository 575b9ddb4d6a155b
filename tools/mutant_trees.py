"""Compiles one changed source, links the programs that notice it, and says how their tests are run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from mutant import ROOT, WORK, Mutant, Problem

# The same options as in the test presets.
SANITIZERS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:external_symbolizer_path=/usr/bin/addr2line",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=50:"
    "external_symbolizer_path=/usr/bin/addr2line",
}
COMMAND = "penstock"
RECORDER = "libpenstock_recorder.so"  # beside the command
RUN = "libpenstock_run.so"  # the same
# The test programs of a layer, where it is not the one of its name.
PROGRAMS = {"doctor": ("doctor", "recorder"), "cli": ("cli", "doctor", "recorder", "run")}
# The folders of a test program, where it is not the one of its name in tests/.
FOLDERS = {"doctor": ("doctor/tests", "doctor/tests/command"), "recorder": ("doctor/tests/recorder",)}


def programs_of(layer: str) -> tuple[str, ...]:
    return PROGRAMS.get(layer, (layer,))


class DoesNotCompile(Exception):
    """No mutant that could run."""


def run(command: list[str | Path], folder: Path, failure: type[Exception] = Problem) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise failure(f"{done.stdout}{done.stderr}"[-3000:])
    return done.stdout


def build(preset: str, targets: list[str], jobs: int) -> None:
    os.environ["CMAKE_GENERATOR"] = "Ninja"
    # Each source by itself: that of a mutant is compiled alone.
    run(["cmake", "--preset", preset, "-DPENSTOCK_UNITY=OFF"], ROOT)
    run(["cmake", "--build", "--preset", preset, "--parallel", str(jobs), "--target", *targets], ROOT)


class Tree:
    """A build tree, with the commands of its compiler and its linker."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.commands: dict[str, list[dict]] = {}  # of each source, which may be part of several programs
        for entry in json.loads((self.folder / "compile_commands.json").read_text()):
            # Absolute or not, as the version of CMake has it; ninja has it relative.
            entry["output"] = os.path.relpath(self.folder / entry["output"], self.folder)
            self.commands.setdefault(os.path.relpath(entry["file"], ROOT), []).append(entry)
        self.lock = threading.Lock()

    @functools.cached_property
    def dependents(self) -> dict[str, list[str]]:
        """For each header, the sources that include it."""
        objects = {entry["output"]: source for source, entries in self.commands.items() for entry in entries}
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

    def targets(self, program: str) -> list[str]:
        """What the tests of a program run, from the folder."""
        runs = [COMMAND, RECORDER, RUN] if program in ("cli", "doctor", "recorder", "run") else []
        return [f"tests/test_{program}", *runs]

    @functools.cache
    def link_command(self, target: str) -> list[str]:
        words = shlex.split(run(["ninja", "-t", "commands", target], self.folder).splitlines()[-1])
        begin = words.index("&&") + 1
        return words[begin : words.index("&&", begin)]

    def sources_of(self, mutant: Mutant) -> list[str]:
        """Of a header: the sources of its layer and of the layer's tests. Others keep what they have."""
        if mutant.file in self.commands:
            return [mutant.file]
        with self.lock:
            dependents = sorted(set(self.dependents.get(mutant.file, [])))
        own = [s for s in dependents if re.match(rf"((src|tests|doctor|doctor/tests)/)?{mutant.layer}/|python/src/", s)]
        if not dependents:
            raise DoesNotCompile(f"{mutant.file} is compiled into nothing in {self.folder}")
        return own or dependents

    def compile(self, mutant: Mutant, source: str) -> tuple[set[str], Path]:
        """Compiles `source` with what the mutant changes. Gives the objects that it replaces, and the new one."""
        # Rather that of the library than that of a test program.
        entry = min(self.commands[source], key=lambda entry: entry["output"].startswith("tests/"))
        words = shlex.split(entry["command"])
        overlay = mutant.folder / "source"
        own = overlay / source
        if not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, own)
        target = mutant.folder / f"{source.replace('/', '_')}.o"
        includes = [f"-I{overlay / folder}" for folder in ("src", "include", "tests", "cli", "python/src", "")]
        includes += [f"-iquote{root / Path(source).parent}" for root in (overlay, ROOT)]
        words[words.index("-o") + 1] = str(target)
        words[words.index("-c") + 1] = str(own)
        first = next(i for i, word in enumerate(words) if word.startswith("-I"))
        # Tests keep the options that their precompiled header has.
        options = [] if source.startswith(("tests/", "doctor/tests/")) else ["-O1", "-g0"]
        run([*words[:first], *includes, *words[first:], *options, "-w"], Path(entry["directory"]), DoesNotCompile)
        return {entry["output"] for entry in self.commands[source]}, target

    def link(self, mutant: Mutant, target: str, objects: list[tuple[set[str], Path]]) -> Path | None:
        """Links a program, the command or a library beside it anew, if an object is part of it."""
        words = list(self.link_command(target))
        for originals, own in objects:
            for original in originals:
                if original in words:
                    words[words.index(original)] = str(own)
                elif library := self.library_of(original, words):
                    words.insert(words.index(library), str(own))  # the library's own member is then not asked for
        if words == self.link_command(target):
            return None
        linked = mutant.folder / Path(target).name
        words[words.index("-o") + 1] = str(linked)
        run([*words, "-Wl,--strip-debug"], self.folder, DoesNotCompile)
        return linked

    def library_of(self, original: str, words: list[str]) -> str | None:
        """The archive among the words of a linker that an object is a member of."""
        archives = (word for word in words if word.endswith(".a") and not word.startswith("/"))
        return next((archive for archive in archives if original in self.members(archive)), None)

    @functools.cache
    def members(self, archive: str) -> set[str]:
        return set(shlex.split(run(["ninja", "-t", "commands", "-s", archive], self.folder)))

    def prepare(self, mutant: Mutant, program: str, objects: list[tuple[set[str], Path]]) -> dict[str, Path]:
        """Links what the program needs. Gives each by the name that it has in the build tree."""
        linked = {target: self.link(mutant, target, objects) for target in self.targets(program)}
        if linked.get(RUN) and not linked[COMMAND]:  # which looks for it beside itself
            linked[COMMAND] = Path(shutil.copy2(self.folder / COMMAND, mutant.folder))
        for library in (RECORDER, RUN) if linked.get(COMMAND) else ():
            if not linked[library]:
                (mutant.folder / library).unlink(missing_ok=True)
                (mutant.folder / library).symlink_to(self.folder / library)
        return {target: path for target, path in linked.items() if path}

    def tests(
        self, program: str, chosen: str, repeat: int, linked: dict[str, Path]
    ) -> tuple[list[str], dict[str, str]]:
        """The command that runs tests of a program, where some of it is linked anew, and its environment."""
        test = f"tests/test_{program}"
        environment = dict(SANITIZERS)
        for target, variable in ((COMMAND, "PENSTOCK_COMMAND"), (RECORDER, "PENSTOCK_RECORDER")):
            if target in linked:
                environment[variable] = str(linked[target])
        command = [str(linked.get(test, self.folder / test)), "--gtest_fail_fast", "--gtest_color=no"]
        return [*command, f"--gtest_repeat={repeat}", f"--gtest_filter={chosen or '*'}"], environment

    def rounds(self, mutant: Mutant) -> Iterator[tuple[str, str]]:
        """Which tests run, of which program: first those that likely notice."""
        programs = programs_of(mutant.layer)
        if mutant.tests:
            yield from ((program, mutant.tests) for program in programs)
            return
        near = {program: self.near(mutant.file, program) for program in programs}
        yield from ((program, tests) for program, tests in near.items() if tests)
        for program, tests in near.items():
            if others := self.others(mutant, tests):
                yield program, others

    @functools.cache
    def near(self, file: str, program: str) -> str:
        """The tests in files that are named like the source, or include its header; "" if there are none."""
        stem = Path(file).stem
        suites = set()
        folders = FOLDERS.get(program, (f"tests/{program}",))
        for test in sorted(test for folder in folders for test in (ROOT / folder).glob("*.cpp")):
            text = test.read_text()
            if test.stem.startswith(stem) or re.search(rf'[/"]{stem}\.hpp[">]', text):
                suites |= set(re.findall(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),", text, re.M))
        return ":".join(f"{suite}.*:*/{suite}.*:{suite}/*" for suite in sorted(suites))

    def others(self, mutant: Mutant, near: str) -> str:
        return f"*-{near}" if near else "*"


class Module(Tree):
    """The build tree of the module that Python imports."""

    def __init__(self, folder: Path, jobs: int):
        self.python = ROOT / "build" / "python" / "venv" / "bin" / "python"
        run([ROOT / "tools" / "python.sh", "environment"], ROOT)
        options = [
            f"Python_EXECUTABLE={self.python}",
            "CMAKE_BUILD_TYPE=Release",
            "CMAKE_CXX_FLAGS=-O1",
            "CMAKE_EXPORT_COMPILE_COMMANDS=ON",
            "PENSTOCK_UNITY=OFF",
            f"PENSTOCK_BUILT={ROOT / 'build' / 'ci'}",
        ]
        defined = [f"-D{option}" for option in options]
        run(["cmake", "-S", ROOT / "python", "-B", folder, "-G", "Ninja", *defined], ROOT)
        run(["cmake", "--build", folder, "--parallel", str(jobs)], ROOT)
        super().__init__(folder)
        self.jobs = jobs
        self.module = next(folder.glob("_core*.so"))
        self.lay_out(folder, self.module)

    def lay_out(self, folder: Path, module: Path) -> None:
        """Makes a package of the sources, of those in the folder first, and the module."""
        package, sources = folder / "site" / "penstock", ROOT / "python" / "penstock"
        shutil.rmtree(package, ignore_errors=True)
        for file in sources.rglob("*.py"):
            own, mutated = package / file.relative_to(sources), folder / "source" / file.relative_to(ROOT)
            own.parent.mkdir(parents=True, exist_ok=True)
            own.symlink_to(mutated if mutated.exists() else file)
        (package / self.module.name).symlink_to(module)
        (package / "_core.pyi").symlink_to(self.folder / "_core.pyi")
        (package / RECORDER).symlink_to(ROOT / "build" / "ci" / RECORDER)

    def prepare(self, mutant: Mutant, program: str, objects: list[tuple[set[str], Path]]) -> dict[str, Path]:
        self.lay_out(mutant.folder, self.link(mutant, self.module.name, objects) if objects else self.module)
        return {"site": mutant.folder / "site"}

    def tests(
        self, program: str, chosen: str, repeat: int, linked: dict[str, Path]
    ) -> tuple[list[str], dict[str, str]]:
        driver = ROOT / "build" / "ci" / "tests" / "fake_driver" / "libfake_cuda.so"
        environment = {
            "PYTHONPATH": str(linked.get("site", self.folder / "site")),
            "PENSTOCK_FAKE_DRIVER": str(driver),
            "OMP_NUM_THREADS": "1",
        }
        command = [str(self.python), "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        return [*command, *shlex.split(chosen or "python/tests")], environment

    @functools.cache
    def near(self, file: str, program: str) -> str:
        stem = Path(file).stem.strip("_")
        tests = sorted((ROOT / "python" / "tests").glob("test_*.py"))
        named = [test for test in tests if test.stem.removeprefix("test_").startswith(stem.rstrip("s"))]
        naming = [test for test in tests if re.search(rf"\b_{stem}\b", test.read_text()) and test not in named]
        return " ".join(str(test.relative_to(ROOT)) for test in named + naming)

    def others(self, mutant: Mutant, near: str) -> str:
        """Those that reach what the mutant changes. If nobody knows, as of C++ and of processes of workers: all."""
        known: set[str] = set()
        if mutant.file.endswith(".py"):
            with self.lock:
                lines = self.reached.get(mutant.file, {})
            known = {test for line in mutant.lines for test in lines.get(str(line), [])}
        if known:
            return " ".join(sorted(test for test in known if test.split("::")[0] not in near.split()))
        return " ".join(["python/tests", *(f"--ignore={test}" for test in near.split())])

    @functools.cached_property
    def reached(self) -> dict[str, dict[str, list[str]]]:
        """For each line of a file, the tests that it is run in."""
        state = hashlib.sha256()
        for file in sorted((ROOT / "python").rglob("*.py")):
            state.update(file.read_bytes())
        told = WORK / f"reached-{state.hexdigest()[:16]}.json"
        if not told.exists():
            self.measure(told)
        files = json.loads(told.read_text())["files"]
        return {file: reached_by(known["contexts"]) for file, known in files.items()}

    def measure(self, told: Path) -> None:
        settings = WORK / "reached.ini"  # coverage removes all files that are named like its data
        settings.write_text(
            f"[run]\ndata_file = {WORK}/coverage\ninclude = */python/penstock/*\n[json]\nshow_contexts = True\n"
        )
        command, environment = self.tests("python", "", 1, {})
        command.remove("-x")
        command += [f"--numprocesses={self.jobs}", "--cov", f"--cov-config={settings}", "--cov-context=test"]
        # A test that fails here has reached its lines all the same.
        measured = [*command, f"--cov-report=json:{told}"]
        done = subprocess.run(measured, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
        if not told.exists():
            raise Problem(f"the lines that tests reach were not measured: {done.stdout[-500:]}{done.stderr[-500:]}")


def reached_by(contexts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Tests without their parameters and phases."""
    return {line: sorted({re.split(r"[\[|]", test)[0] for test in tests if test}) for line, tests in contexts.items()}
