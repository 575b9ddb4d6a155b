"""Makes the trace of docs/doctor.md as the page says, and compares the report with the page's:
check_report.py DOCUMENT PENSTOCK MAKE_TRACE."""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile


def main() -> int:
    document, penstock, make_trace = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    text = document.read_text()
    found = re.search(r"`benchmarks/make_trace\.py ([^`]+)`", text)
    if found is None:
        print(f"{document}: the command that makes the trace is missing", file=sys.stderr)
        return 1
    words = shlex.split(found.group(1).replace("\n", " "))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-B", make_trace, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        command = [penstock, "doctor", words[0]]
        report = subprocess.run(command, cwd=folder, check=True, text=True, capture_output=True, env={"LC_ALL": "C"})
    if f"```\n{report.stdout}```\n" in text:
        return 0
    print(f"{document} shows another report than:\n{report.stdout}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
