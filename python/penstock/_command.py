"""The `penstock` command, which is in the module."""

import os
import sys
from pathlib import Path

from . import _core


def main() -> int:
    """Runs the command with this program's arguments; returns its exit status."""
    arguments = [b"penstock", *map(os.fsencode, sys.argv[1:])]  # file names need not be text
    return _core.run_command(arguments, Path(__file__).with_name("d3.min.js"), sys.executable or "python3")
