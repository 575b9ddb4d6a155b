"""Reads tests/mutants.toml: the removals that rules do not make or judge, each found by its function and a pattern.

A table is named for what is removed, in a few words, and holds:

function   where: Class::function, function, or Class for what is outside its functions; in Python Class.function
text       what is replaced; it is found once in all functions of that name. White space and line ends may differ
with       what stands there instead; left out: nothing
tests      which tests should notice, as --gtest_filter takes it (python: pytest's arguments); left out: the layer's
build      asan or tsan: the preset whose test program notices; left out: ci
repeat     how often the tests run at most; left out: once
unnoticed  why no test can notice what a rule makes: it is equivalent, or not observable here. It is not run
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from mutant import ROOT, Mutant, Problem, source_of, sources
from removals import PARSERS, Node

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

LIST = ROOT / "tests" / "mutants.toml"
REQUIRED = {"function", "text"}
KEYS = REQUIRED | {"with", "tests", "build", "repeat", "unnoticed"}
CLASSES = {"class_specifier", "struct_specifier", "class_definition"}


def own_name(node: Node) -> str:
    """Of a function or a class."""
    named = node.child_by_field_name("name") or node.child_by_field_name("declarator")
    while named and (inner := named.child_by_field_name("declarator") or inside_reference(named)):
        named = inner
    return re.sub(r"<[^<>]*>|\s", "", named.text.decode()) if named else ""


def inside_reference(node: Node) -> Node | None:
    """A function that returns a reference hides its declarator."""
    return node.named_children[0] if node.type == "reference_declarator" else None


def named_parts(root: Node, separator: str) -> list[tuple[str, Node]]:
    """All functions and classes, with their names."""
    parts = []

    def visit(node: Node, within: str) -> None:
        if node.type in CLASSES | {"function_definition"} and (name := own_name(node)):
            within = f"{within}{separator}{name}" if within else name
            parts.append((within, node))
        for child in node.named_children:
            visit(child, within)

    visit(root, "")
    return parts


@functools.cache
def parts_of(file: str) -> list[tuple[str, Node]]:
    suffix = Path(file).suffix
    return named_parts(PARSERS[suffix].parse(source_of(file)).root_node, "." if suffix == ".py" else "::")


def pattern(text: str) -> re.Pattern[bytes]:
    return re.compile(rb"\s*".join(re.escape(token.encode()) for token in re.findall(r"\w+|[^\w\s]", text)))


def places(function: str, text: str) -> set[tuple[str, int, int]]:
    """Where the text is in the functions of that name: files, and the bytes where it begins and ends."""
    found, sought, last = set(), pattern(text), re.split(r"::|\.", function)[-1].encode()
    for file in sources():
        if last not in source_of(file):
            continue
        for _name, node in (part for part in parts_of(file) if part[0] == function):
            for match in sought.finditer(node.text):
                found.add((file, node.start_byte + match.start(), node.start_byte + match.end()))
    return found


def indented(replacement: str, source: bytes, start: int) -> str:
    """Lines after the first begin where the first line of what is replaced does."""
    line = source[source.rfind(b"\n", 0, start) + 1 :]
    indent = line[: len(line) - len(line.lstrip(b" "))].decode()
    return replacement.strip().replace("\n", f"\n{indent}")


def read_entry(name: str, entry: dict) -> Mutant:
    if not REQUIRED <= entry.keys() <= KEYS:
        raise Problem(f"{name}: needs {sorted(REQUIRED)}; unknown: {sorted(entry.keys() - KEYS)}")
    found = places(entry["function"], entry["text"])
    if len(found) != 1:
        raise Problem(f"{name}: its text is found {len(found)} times in functions {entry['function']}")
    file, start, end = found.pop()
    return Mutant(
        file,
        start,
        end,
        indented(entry.get("with", ""), source_of(file), start).encode(),
        name,
        is_kept=True,
        tests=entry.get("tests", ""),
        build=entry.get("build", ""),
        repeat=entry.get("repeat", 1),
        unnoticed=entry.get("unnoticed", ""),
    )


def kept_removals(path: Path = LIST) -> tuple[list[Mutant], list[str]]:
    """The kept removals, and what is wrong with those that are not found."""
    mutants, wrong = [], []
    for name, entry in tomllib.loads(path.read_text()).items():
        try:
            mutants.append(read_entry(name, entry))
        except Problem as problem:
            wrong.append(str(problem))
    return mutants, wrong
