"""A program that ends while a daemon thread of it is in one of penstock's calls ends as without the thread."""

import ast
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("exits.py")
RUNS = 4


@pytest.mark.parametrize(
    "kind",
    [
        *("one", "many", "back", "group", "load", "save", "opened", "shared"),
        *("loader", "iterable", "feed", "workers", "native"),
    ],
)
def test_a_daemon_thread_may_be_at_work_when_the_program_ends(kind):
    run = subprocess.run([sys.executable, PROGRAM, kind, str(RUNS)], capture_output=True, text=True, timeout=1800)
    assert ast.literal_eval(run.stdout) == {0: RUNS}, run.stderr
    assert run.stderr == "", "it is left without a word"
