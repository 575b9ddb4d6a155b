"""Runs the commands of a Markdown document's sh blocks that begin with "penstock feed", each of which must succeed:
run_commands.py DOCUMENT PENSTOCK. They find small datasets under the names that the documents use."""

import os
import pathlib
import random
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import zipfile


def write_npy(file: pathlib.Path, dtype: str, shape: tuple, data: bytes) -> None:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    file.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


def commands_of(document: pathlib.Path) -> list:
    blocks = re.findall(r"^```sh\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("penstock feed ")]


def main() -> int:
    document, penstock = pathlib.Path(sys.argv[1]), sys.argv[2]
    commands = commands_of(document)
    if not commands:
        print(f"{document}: no command to run", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_npy(folder / "images.npy", "|u1", (600, 3, 8, 8), random.Random(1).randbytes(600 * 192))
        write_npy(folder / "labels.npy", "<i8", (600,), struct.pack("<600q", *(i % 10 for i in range(600))))
        with zipfile.ZipFile(folder / "set.npz", "w") as archive:
            archive.write(folder / "images.npy", "images.npy")
            archive.write(folder / "labels.npy", "labels.npy")
        environment = {"HOME": name, "PENSTOCK_LIBCUDA": "/nowhere/libcuda.so.1",
                       "PATH": os.environ["PATH"]}
        for command in commands:
            result = subprocess.run([penstock, *command[1:]], cwd=folder, env=environment, text=True,
                                    capture_output=True, check=False)
            if result.returncode != 0:
                print(f"{shlex.join(command)}: status {result.returncode}\n{result.stderr}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
