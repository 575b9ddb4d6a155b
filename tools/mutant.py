"""One change of a source, as tools/mutants.py judges it."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
SOURCES = ("src", "include", "cli", "doctor", "run", "python/src", "python/penstock")
MEANINGLESS = b" \n;(){}"  # of two that remove the same, one may leave an empty statement behind


class Problem(Exception):
    """A mutant cannot be judged; says why."""


@functools.cache
def source_of(file: str) -> bytes:
    return (ROOT / file).read_bytes()


@functools.cache
def digest_of(file: str) -> bytes:
    return hashlib.sha256(file.encode() + b"\0" + source_of(file)).digest()


@functools.cache
def meaning(file: str) -> tuple[bytes, list[int]]:
    """The bytes of a file that mean something, and where each is."""
    source = source_of(file)
    places = [place for place, byte in enumerate(source) if byte not in MEANINGLESS]
    return bytes(source[place] for place in places), places


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str  # from the repository's root
    start: int  # of the bytes that are replaced
    end: int
    replacement: bytes
    name: str  # what is removed, in a few words
    is_kept: bool = False  # in tests/mutants.toml, rather than made
    tests: str = ""  # as --gtest_filter or pytest takes them; all of the layer where empty
    build: str = ""  # the preset whose tests notice; where empty, ci or python
    repeat: int = 1  # how often the tests run at most
    unnoticed: str = ""  # why no test can notice

    @property
    def layer(self) -> str:
        return layer_of(self.file)

    @property
    def preset(self) -> str:
        return self.build or ("python" if self.layer == "python" else "ci")

    @functools.cached_property
    def lines(self) -> range:
        """Those that change, from 1."""
        source = source_of(self.file)
        first = source.count(b"\n", 0, self.start) + 1
        return range(first, first + source.count(b"\n", self.start, self.end) + 1)

    @property
    def place(self) -> str:
        """File, line and column, from 1."""
        column = self.start - source_of(self.file).rfind(b"\n", 0, self.start)
        return f"{self.file}:{self.lines[0]}:{column}"

    @property
    def text(self) -> bytes:
        """The whole file, changed."""
        source = source_of(self.file)
        return source[: self.start] + self.replacement + source[self.end :]

    @functools.cached_property
    def key(self) -> str:
        change = (self.start, self.end, self.replacement, self.build, self.tests, self.repeat)
        return hashlib.sha256(digest_of(self.file) + repr(change).encode()).hexdigest()[:16]

    @functools.cached_property
    def shape(self) -> tuple[str, int, int, bytes]:
        """The same for two that change the same but for braces and white space."""
        source, places = meaning(self.file)
        begin, end = bisect.bisect_left(places, self.start), bisect.bisect_left(places, self.end)
        put = self.replacement.translate(None, MEANINGLESS).replace(b"pass", b"")
        while begin < end and put and source[begin] == put[0]:
            begin, put = begin + 1, put[1:]
        while begin < end and put and source[end - 1] == put[-1]:
            end, put = end - 1, put[:-1]
        return self.file, begin, end, put

    @property
    def folder(self) -> Path:
        return WORK / "work" / self.key


def layer_of(file: str) -> str:
    parts = Path(file).parts
    if parts[:2] == ("doctor", "recorder"):
        return "recorder"
    return parts[{"src": 1, "include": 2}.get(parts[0], 0)]


def sources() -> list[str]:
    """All files from which something is removed."""
    found = (path for folder in SOURCES for path in (ROOT / folder).rglob("*"))
    files = (str(path.relative_to(ROOT)) for path in found if path.suffix in {".cpp", ".hpp", ".py"})
    return sorted(file for file in files if not file.startswith("doctor/tests/"))
