"""What mypy and pyright, both strict, say of a program that uses penstock."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import penstock

PROGRAM = """\
from typing import Any
import penstock
pairs: list[tuple[int, str]] = []
loader: Any = None
fed = penstock.feed(pairs, "cuda", prefetch_depth=3, sharded=True)
for x, y in fed:
    reveal_type(x)  # int
    reveal_type(y)  # str
for batch in penstock.feed(loader, group=None, resumable=True):
    reveal_type(batch)  # Any
for each in penstock.feed(pairs, group=["cuda:0", "cuda:1"]):
    reveal_type(each)  # list[tuple[int, str]]
reveal_type(penstock.feed(fed))  # Feed[tuple[int, str]]
reveal_type(len(fed))  # int
reveal_type(fed.describe())  # list[str]
reveal_type(fed.stats().samples_per_second)  # float
reveal_type(penstock.Loader(loader, batch_size=64).stats().batches)  # int
reveal_type(penstock.move_(pairs, "cuda"))  # list[tuple[int, str]]
reveal_type(penstock.diagnose(loader))  # LoaderVerdict
reveal_type(penstock.park(loader).stats().host_bytes)  # int
penstock.Loader(loader, residency=0.5, tuning=penstock.Tuning(gather="zero-copy", when_full="fail"))
fed.stats().sampels  # error: "sampels"
penstock.feed(pairs, prefech_depth=3)  # error: "feed"
penstock.feed(penstock.Sampler)  # error: "feed"
penstock.Loader(loader, batchsize=64)  # error: "batchsize"
penstock.Loader(loader, residency="al")  # error: "residency"
penstock.Tuning(gather="zero_copy")  # error: "gather"
penstock.park(loader, "pined")  # error: Literal['pined']
penstock.move_(pairs)  # error: "device"
"""


def check(command, folder):
    """Runs a type checker on the program in the folder, where penstock is found as it is imported here."""
    package = str(pathlib.Path(penstock.__file__).parents[1])
    paths = {"MYPYPATH": "" if "site-packages" in package else package, "PYTHONPATH": os.pathsep.join(sys.path)}
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", *command]
    return subprocess.run(command, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True, check=False)


def expect(said, text):
    """`said`: what a checker says of each line, and of which lines it is an error."""
    assert said, text
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        wanted = line.partition("  # ")[2].removeprefix("error: ")
        here = [message for at, message, _ in said if at == number]
        assert any(wanted in message for message in here) if wanted else not here, (line, here)
        assert any(wrong for at, _, wrong in said if at == number) is ("# error: " in line), (line, here)


def test_a_program_has_the_types_that_it_should(tmp_path):
    pytest.importorskip("mypy")
    # Untyped: it would be read whole.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    done = check(["mypy", "--config-file", "mypy.ini", "program.py"], tmp_path)
    lines = re.findall(r"^program\.py:(\d+): (\w+): (.*)", done.stdout, re.MULTILINE)
    expect([(int(at), message, kind == "error") for at, kind, message in lines], done.stdout + done.stderr)


def test_pyright_sees_the_same(tmp_path):
    pytest.importorskip("basedpyright")
    settings = {"typeCheckingMode": "strict", "include": ["program.py"], "pythonVersion": "3.10"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = check(["basedpyright", "--outputjson", "--pythonpath", sys.executable], tmp_path)
    found = json.loads(done.stdout)["generalDiagnostics"]
    said = [(each["range"]["start"]["line"] + 1, each["message"], each["severity"] == "error") for each in found]
    expect(said, done.stderr)
