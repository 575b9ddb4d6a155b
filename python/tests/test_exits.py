"""A program that ends while a daemon thread of it is in one of penstock's calls ends as without the thread."""

import ast
import pathlib
import signal
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("exits.py")
RUNS = 4


@pytest.mark.parametrize(
    "kind", ["one", "many", "back", "group", "load", "save", "opened", "shared", "loader", "iterable"]
)
def test_a_daemon_thread_may_be_at_work_when_the_program_ends(kind):
    codes, errors = run(kind)
    assert codes == {0: RUNS}, errors
    assert errors == "", "it is left without a word"


@pytest.mark.parametrize("kind", ["feed", "workers", "native"])
def test_so_it_is_with_pytorch_but_for_pytorchs_own_abort(kind):
    """Its tensors take the interpreter's lock in a destructor, which aborts if Python ends the thread there."""
    codes, errors = run(kind)
    assert codes.get(0, 0) + codes.get(-signal.SIGABRT, 0) == RUNS, errors


def run(kind):
    """The exit codes of as many programs, and what they wrote."""
    done = subprocess.run([sys.executable, PROGRAM, kind, str(RUNS)], capture_output=True, text=True, timeout=1800)
    return ast.literal_eval(done.stdout), done.stderr
