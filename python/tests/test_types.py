"""What type checkers say of a program that uses penstock. pyright says the same of these lines."""

import os
import pathlib
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
reveal_type(penstock.feed(fed))  # penstock._feed.wrapper.Feed[tuple[int, str]]
reveal_type(len(fed))  # int
reveal_type(fed.describe())  # list[str]
reveal_type(fed.stats().samples_per_second)  # float
reveal_type(penstock.Loader(loader, batch_size=64).stats().batches)  # int
fed.stats().sampels  # error: has no attribute "sampels"
penstock.feed(pairs, prefech_depth=3)  # error: "prefech_depth"
penstock.feed(penstock.Sampler)  # error: No overload variant
penstock.Loader(loader, batchsize=64)  # error: Argument "batchsize" to "Loader" has incompatible type
"""


def test_a_program_has_the_types_that_it_should(tmp_path):
    pytest.importorskip("mypy")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    # Untyped: it would be read whole.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    package = pathlib.Path(penstock.__file__).parents[1]
    environment = {**os.environ, "MYPYPATH": "" if "site-packages" in str(package) else str(package)}
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = [line.partition(":") for line in done.stdout.splitlines() if line.startswith("program.py:")]
    assert said, done.stdout + done.stderr
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        wanted = line.partition("  # ")[2].removeprefix("error: ")
        here = [rest for _, _, rest in said if rest.startswith(f"{number}: ")]
        assert any(wanted in rest for rest in here) if wanted else not here, (line, here)
        assert any(" error: " in rest for rest in here) is ("# error: " in line), (line, here)
