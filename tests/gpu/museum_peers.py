"""What other tools say about the museum's programs: torch.profiler, HolisticTraceAnalysis, scalene and traceml-ai about
those with PyTorch, and the rules of Nsight Systems about those in C++, too, as far as they are installed. The table has
what each says. It can be checked only if it names the line of the mistake."""

import concurrent.futures
import dataclasses
import importlib.util
import json
import pathlib
import re
import shutil
import socket
import sys

from museum_exhibits import Exhibit

# The program's code stays alive, because the profiler asks for its names at the end.
TORCH = """
import collections, sys, torch
from torch.profiler import ProfilerActivity, profile
program, trace = sys.argv[1:3]
code = compile(open(program).read(), program, "exec")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True) as profiler:
    exec(code, {"__name__": "__main__", "__file__": program})
    torch.cuda.synchronize()
profiler.export_chrome_trace(trace)
rows = [row for row in profiler.key_averages() if "): " not in row.key]  # without functions of Python
for title, time in (("host", lambda row: row.self_cpu_time_total), ("GPU", lambda row: row.self_device_time_total)):
    whole = sum(time(row) for row in rows)
    for row in sorted(rows, key=time, reverse=True)[: 2 if whole else 0]:
        print(f"says: {title} {time(row) / whole:.0%} {row.key[:40]}")
"""
HTA = """
import os, sys
from hta.trace_analysis import TraceAnalysis
trace = sys.argv[1]
analysis = TraceAnalysis(trace_files={0: trace}, trace_dir=os.path.dirname(trace))
for _, row in analysis.get_temporal_breakdown(visualize=False).iterrows():
    print(f"says: idle {row['idle_time_pctg']} %, compute {row['compute_time_pctg']} %, "
          f"other {row['non_compute_time_pctg']} %")
for _, row in analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0].iterrows():
    if row["idle_time_ratio"] > 0.1:
        print(f"says: stream {row['stream']} {row['idle_category']} {row['idle_time_ratio']:.0%}")
"""
# traceml-ai wants to be told what a step is.
TRACEML = """
import traceml_ai as traceml
traceml.init(mode="auto")
untraced = train
def train(x):
    with traceml.trace_step(model):
        return untraced(x)
"""


# Those of Nsight Systems that are about copies, waits and an idle GPU.
NSYS_RULES = "cuda_memcpy_async,cuda_memcpy_sync,cuda_memset_sync,cuda_api_sync,gpu_gaps,gpu_time_util"


@dataclasses.dataclass
class Answer:
    said: str
    names_line: bool | None = None  # None: it failed, is not installed, or is not for such programs


def find_nsys() -> str | None:
    beside = ["/usr/local/cuda/bin", *sorted(map(str, pathlib.Path("/opt/nvidia").glob("nsight-systems*/*/bin")))]
    return shutil.which("nsys") or shutil.which("nsys", path=":".join(beside))


def rules_that_found(text: str) -> list[str]:
    """The rules in a report of `nsys analyze` that have something to say, each below a heading with its name."""
    found = []
    for section in re.split(r"^\s*\*\* ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        name = re.search(r"\((\w+)\)", heading)
        if name and body.strip() and not re.search(r"no problems detected|does not contain", body):
            found.append(name[1])
    return found


class Peers:
    """`run` is the museum's, as is `command_of`: an exhibit's command, environment, file and line."""

    def __init__(self, run, command_of, folder: pathlib.Path, exhibits: list[Exhibit]) -> None:
        self.run = run
        self.command_of = command_of
        self.folder = folder
        self.exhibits = [exhibit for exhibit in exhibits if exhibit.finding]
        for name, text in (("peer_torch", TORCH), ("peer_hta", HTA)):
            (folder / f"{name}.py").write_text(text)

    def table(self, jobs: int) -> list[dict]:
        rows = []
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for row in pool.map(self.ask, self.exhibits):
                rows.append(row)
                print(f"\n{row['name']} (line {row['line']})")
                for tool, answer in row["answers"].items():
                    line = {True: "names the line", False: "another line or none", None: ""}[answer["names_line"]]
                    print(f"  {tool:14} {line:21} {answer['said']}", flush=True)
        print()
        for tool in rows[0]["answers"] if rows else []:
            answers = [row["answers"][tool] for row in rows if row["answers"][tool]["names_line"] is not None]
            print(
                f"{tool}: ran on {len(answers)} of {len(rows)}; line named on {sum(a['names_line'] for a in answers)}"
            )
        return rows

    def ask(self, exhibit: Exhibit) -> dict:
        folder = self.folder / ("peers_" + re.sub(r"\W+", "_", exhibit.name))
        folder.mkdir()
        program = folder / "program.py"
        tools = {"torch.profiler": self.torch, "HTA": self.hta, "scalene": self.scalene, "traceml-ai": self.traceml}
        if exhibit.native:
            command, environment, source, line = self.command_of(exhibit, False)
        else:
            text = exhibit.text()
            program.write_text(text)
            line = next(number for number, code in enumerate(text.splitlines(), 1) if "# HERE" in code)
            command, environment, source = [sys.executable, program], {}, program
        answers = {}
        for tool, question in tools.items():
            if exhibit.native:
                answers[tool] = Answer("only for Python")
                continue
            try:
                answers[tool] = question(program, line)
            except Exception as error:  # a tool that fails is a result
                answers[tool] = Answer(f"failed: {type(error).__name__}: {str(error)[:80]}")
        try:
            answers["nsys"] = self.nsys(folder, command, environment, f"{source.name}:{line}")
        except Exception as error:
            answers["nsys"] = Answer(f"failed: {type(error).__name__}: {str(error)[:80]}")
        return {
            "name": exhibit.name,
            "expected": exhibit.finding,
            "line": line,
            "answers": {tool: dataclasses.asdict(answer) for tool, answer in answers.items()},
        }

    def lines_of(self, command: list, environment: dict | None = None) -> list[str]:
        result = self.run(command, environment, 150)
        if result.returncode != 0:
            raise RuntimeError(f"status {result.returncode}: {(result.stderr.strip().splitlines() or ['nothing'])[-1]}")
        return result.stdout.splitlines()

    def nsys(self, folder: pathlib.Path, command: list, environment: dict, place: str) -> Answer:
        nsys = find_nsys()
        if nsys is None:
            return Answer("not installed")
        recording = folder / "recording"
        self.lines_of([nsys, "profile", "--trace", "cuda", "--force-overwrite", "true", "-o", recording, *command],
                      environment)  # fmt: skip
        report = self.lines_of([nsys, "analyze", "--rule", NSYS_RULES, f"{recording}.nsys-rep"])
        text = "\n".join(report)
        return Answer(", ".join(rules_that_found(text)) or "nothing", place in text)

    @staticmethod
    def port() -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    def says(self, command: list) -> str:
        return "; ".join(line.removeprefix("says: ") for line in self.lines_of(command) if line.startswith("says: "))

    def torch(self, program: pathlib.Path, line: int) -> Answer:
        trace = program.with_name("trace.json")
        said = self.says([sys.executable, self.folder / "peer_torch.py", program, trace])
        return Answer(said, f"{program.name}({line}): " in trace.read_text(errors="replace"))

    def hta(self, program: pathlib.Path, line: int) -> Answer:
        if not importlib.util.find_spec("hta"):
            return Answer("not installed")
        said = self.says([sys.executable, self.folder / "peer_hta.py", program.with_name("trace.json")])
        return Answer(said, f"({line})" in said)

    def scalene(self, program: pathlib.Path, line: int) -> Answer:
        """Its first three lines by time. Without --cpu-only, 2.4.0 did not end on a machine without a GPU."""
        if not importlib.util.find_spec("scalene"):
            return Answer("not installed")
        out = program.with_name("scalene.json")
        self.lines_of([sys.executable, "-m", "scalene", "run", "--cpu-only", "-o", out, program])
        files = json.loads(out.read_text()).get("files", {})
        lines = next((entry["lines"] for name, entry in files.items() if name.endswith(program.name)), [])

        def share(row: dict) -> float:
            return row["n_cpu_percent_python"] + row["n_cpu_percent_c"] + row["n_sys_percent"]

        first = sorted(lines, key=share, reverse=True)[:3]
        said = ", ".join(f"line {row['lineno']} {share(row):.0f} %" for row in first)
        return Answer(said, any(row["lineno"] == line for row in first))

    def traceml(self, program: pathlib.Path, line: int) -> Answer:
        if not importlib.util.find_spec("traceml_ai"):
            return Answer("not installed")
        head, body = program.read_text().split("    return loss\n", 1)
        traced = program.with_name("traced.py")
        traced.write_text(head + "    return loss\n" + TRACEML + body)
        start = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"
        options = ["--mode", "summary", "--logs-dir", program.with_name("logs")]
        # Its processes find each other by ports, which another program beside it may not have.
        options += ["--aggregator-port", str(self.port()), "--master-port", str(self.port())]
        command = [sys.executable, "-c", start, "run", *options, traced]
        said = "; ".join(
            found[1].strip()
            for text in self.lines_of(command)
            if (found := re.search(r"^\|\s+((?:Verdict|Why|Next): .*?)\s*\|", text))
        )
        return Answer(said, f"({line})" in said or f"line {line}" in said)
