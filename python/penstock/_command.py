"""The `penstock` command, which is in the module."""

import os
import sys

from . import _core


def main() -> int:
    """Runs the command with this program's arguments; returns its exit status."""
    arguments = [b"penstock", *map(os.fsencode, sys.argv[1:])]  # file names need not be text
    return _core.run_command(arguments, sys.executable or "python3")
