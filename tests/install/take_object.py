"""A compiler launcher, `take_object.py FINISHED BUILD COMPILER ARGUMENTS...`: takes the object of the finished build if the
same command has made it there, and otherwise compiles for BUILD."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

TAKE_A_VALUE = ("-MT", "-MF")


def command_of(words: list[str]) -> list[str]:
    """Without what comes before the compiler, and without the options that note dependencies."""
    kept, skip = [], False
    for word in words[words.index(compiler) :]:
        if not skip and word not in ("-MD", *TAKE_A_VALUE):
            kept.append(word)
        skip = word in TAKE_A_VALUE
    return kept


finished, build, compiler, *arguments = sys.argv[1:]
wanted = [word.replace(build, finished) for word in command_of([compiler, *arguments])]
for entry in json.loads(Path(finished, "compile_commands.json").read_text()):
    words = shlex.split(entry["command"])
    if compiler in words and command_of(words) == wanted:
        target = wanted[wanted.index("-o") + 1]
        shutil.copyfile(Path(entry["directory"], target), target)
        sys.exit()
os.execvp(compiler, [compiler, *arguments])
