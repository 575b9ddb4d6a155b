"""Writes the one C++ program of a Markdown document to a file: extract_program.py DOCUMENT PROGRAM."""

import pathlib
import re
import sys


def main() -> int:
    document, program = map(pathlib.Path, sys.argv[1:])
    blocks = re.findall(r"^```cpp\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    programs = [block for block in blocks if "int main(" in block]
    if len(programs) != 1:
        print(f"{document}: {len(programs)} C++ blocks with a main function, expected 1", file=sys.stderr)
        return 1
    program.write_text(programs[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
