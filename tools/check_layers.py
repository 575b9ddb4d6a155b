#!/usr/bin/env python3
"""Fails on an #include that the layers do not allow: check_layers.py [ROOT].

A layer may include its own headers, and the public and shared ones of the layers below it: <penstock/LAYER/...> is what users
include, "LAYER/shared/..." is what higher layers may include besides. The rest of src/LAYER/ is the layer's own. Checked are
include/, src/, doctor/, run/, cli/ and python/; tests and benchmarks may include anything.
"""

import pathlib
import re
import sys

# layer: the layers that it may include besides itself
LAYERS = {
    "core": set(),
    "device": {"core"},
    "memory": {"core", "device"},
    "transfer": {"core", "device", "memory"},
    "link": {"core", "device", "memory", "transfer"},
    "decode": {"core"},
    "data": {"core", "decode"},
    "loader": {"core", "device", "memory", "transfer", "decode", "data"},
}
# Too slow to compile, or not installed where penstock is used.
PRIVATE_LIBRARIES = ("fmt/", "nlohmann/", "CLI/", "zlib", "jpeglib", "spng", "webp/")
# For those who implement a device; callers have Device, Stream and Event.
IMPLEMENTERS_HEADER = "penstock/device/backend.hpp"
FOR_IMPLEMENTERS = "backend.hpp is for those who implement a device: use Device, Stream and Event"

# The doctor, what runs programs, the command and the package include what users include, and core's helpers, which know neither devices nor
# data.
OURS_MAY_SHARE = ("core",)

# part of the doctor: the parts that it may include besides itself
DOCTOR = {
    "timeline": set(),
    "read": {"timeline"},
    "rules": {"timeline", "read"},
    "report": {"timeline", "read", "rules"},
    "command": {"timeline", "read", "rules", "report"},
}
# Of the command, these use what all its parts share.
SHARE_THE_COMMAND = ("report", "command")
NOT_THE_DOCTORS = "loader"
# The recorder is loaded into other programs, so it has no code of the library: only what both must agree on.
RECORDERS_HEADERS = (
    "doctor/read/recording_format.hpp",
    "doctor/read/call_names.hpp",
    "doctor/read/python_files.hpp",
    "doctor/timeline/work_labels.hpp",
)

# Of what runs programs, the command reads the figures.
RUNS_FIGURES = "run/figures.hpp"

CHECKED = ("include", "src", "doctor", "run", "cli", "python")
SUFFIXES = {".hpp", ".h", ".cpp", ".cc", ".cu", ".S"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def ours_problem(whose: str, public: bool, quote: str, target: str) -> str | None:
    """Why what is built on the library may not include `target`."""
    parts = target.split("/")
    shared = len(parts) > 2 and parts[1] == "shared" and parts[0] in OURS_MAY_SHARE
    if not public and quote == '"' and len(parts) > 1 and parts[0] in LAYERS and not shared:
        return f"{whose} includes public headers only, and {' and '.join(OURS_MAY_SHARE)}/shared"
    return FOR_IMPLEMENTERS if target == IMPLEMENTERS_HEADER else None


def doctors_problem(part: str, public: bool, quote: str, target: str) -> str | None:
    """Why a part of the doctor may not include `target`."""
    parts = target.split("/")
    if part == "tests":
        return None
    if part == "recorder":
        ours = public or (quote == '"' and len(parts) > 1) or (len(parts) > 1 and parts[0] in LAYERS)
        return "the recorder has no code of the library" if ours and target not in RECORDERS_HEADERS else None
    if part not in DOCTOR:
        return f"'{part}' is no part of the doctor"
    if parts[0] == "doctor" and parts[1] != part and parts[1] not in DOCTOR[part]:
        allowed = ", ".join(sorted(DOCTOR[part])) or "no other part"
        return f"{part} may include {allowed} of the doctor, not {parts[1]}"
    if parts[0] == "cli" and (parts[1] != "shared" or part not in SHARE_THE_COMMAND):
        return f"of the command, {' and '.join(SHARE_THE_COMMAND)} include cli/shared, and nothing else does"
    if public and parts[1] == NOT_THE_DOCTORS:
        return f"the doctor does without {NOT_THE_DOCTORS}"
    return ours_problem("the doctor", public, quote, target)


def problem(root: pathlib.Path, file: pathlib.PurePath, quote: str, target: str) -> str | None:
    """Why `file` (relative to `root`) may not include `target`; None if it may."""
    parts = target.split("/")
    if ".." in parts or target.startswith("/"):
        return "a path that climbs out of its folder hides which layer it is of"
    public = parts[0] == "penstock"
    shared = not public and len(parts) > 2 and parts[1] == "shared"
    layer = (parts[1] if public and len(parts) > 2 else parts[0]) if len(parts) > 1 else None

    if file.parts[0] == "doctor":
        return doctors_problem(file.parts[1], public, quote, target)
    if parts[0] == "run" and file.parts[0] != "run" and (file.parts[0] != "cli" or target != RUNS_FIGURES):
        return f"of run, the command includes {RUNS_FIGURES}, and nothing else does"
    if file.parts[0] == "run":
        if layer in ("doctor", "cli", "loader"):
            return "run stands on the library below the loader"
        return ours_problem("run", public, quote, target)
    if file.parts[0] in ("cli", "python"):
        if file.parts[0] == "python" and (root / "python" / "src" / target).is_file():
            return None
        if target.startswith("doctor/") and (file.parts[:2] == ("cli", "shared") or not target.startswith("doctor/command/")):
            return "of the doctor, the command includes doctor/command/ only, and cli/shared nothing"
        if file.parts[0] == "python" and layer in ("doctor", "cli"):
            return "the package takes the command as a whole: include run_command.hpp"
        return ours_problem(file.parts[0], public, quote, target)

    inside = file.parts[2] if file.parts[0] == "include" else file.parts[1]
    if inside not in LAYERS:
        return f"'{inside}' is no layer"
    if file.parts[0] == "include":
        if quote == '"':
            return "public headers include no private ones: write <penstock/...>"
        if target.startswith(PRIVATE_LIBRARIES):
            return "public headers do without this library"
    if quote == '"' or public:
        if layer not in LAYERS:
            return f"'{target}' names no layer: write <penstock/LAYER/...> or \"LAYER/...\""
        if layer != inside and layer not in LAYERS[inside]:
            allowed = ", ".join(sorted(LAYERS[inside])) or "no other layer"
            return f"{inside} may include {allowed}, not {layer}"
        if layer != inside and not public and not shared:
            return f"'{target}' is private to {layer}: include a public or shared header of {layer}"
        if layer != inside and target == IMPLEMENTERS_HEADER:
            return FOR_IMPLEMENTERS
    return None


def check(root: pathlib.Path) -> list[str]:
    """A line 'file:line: reason' for each include that is not allowed."""
    found = []
    for top in CHECKED:
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            file = path.relative_to(root)
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                reason = match and problem(root, file, *match.groups())
                if reason:
                    found.append(f"{file}:{number}: {line.strip()}: {reason}")
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    if not any((root / top).is_dir() for top in CHECKED):
        print(f"{root} holds none of {', '.join(CHECKED)}", file=sys.stderr)
        return 1
    found = check(root)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
