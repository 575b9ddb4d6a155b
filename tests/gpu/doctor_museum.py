#!/usr/bin/env python3
"""Runs planted PyTorch programs under `penstock doctor`, and checks what it finds, and at which line:
doctor_museum.py --penstock build/release/penstock [--only NAME...] [--json FILE]

Each program has one mistake, marked with HERE, or none. It needs a GPU and PyTorch; without them it says so and does
nothing. At the end it measures what the recorder costs a step of 2 ms with 60 kernels.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

PRELUDE = """
import torch
device = torch.device("cuda")
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
resident = torch.rand(1024, 2048, device=device)

def train(x):
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
# A dataset whose samples take as long as decoding would.
LOADER = """
import time

class Decoded(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS * 64

    def __getitem__(self, index):
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            pass
        return torch.full((2048,), float(index % 7))
"""


@dataclasses.dataclass
class Exhibit:
    name: str
    source: str
    finding: str | None = None  # the id that is expected at HERE; None: the program is clean
    prelude: str = PRELUDE
    known: str = ""  # why the doctor may miss it


EXHIBITS = [
    Exhibit(
        "pageable batches",
        """
data = torch.rand(4, 1024, 2048)
for i in range(150):
    x = data[i % 4].to(device)  # HERE
    train(x)
""",
        "pageable-copies",
    ),
    Exhibit(
        "pageable, non_blocking",
        """
data = torch.rand(4, 1024, 2048)
def to_gpu(x):
    return x.to(device, non_blocking=True)  # HERE
for i in range(150):
    train(to_gpu(data[i % 4]))
""",
        "pageable-copies",
    ),
    Exhibit(
        "pinned, but blocking",
        """
data = torch.rand(4, 4096, 2048).pin_memory()
for i in range(100):
    x = data[i % 4].to(device)  # HERE
    train(x[:1024])
""",
        "blocking-copies",
    ),
    Exhibit(
        "pinned, nothing overlaps",
        """
data = torch.rand(4, 8192, 2048).pin_memory()
for i in range(100):
    x = data[i % 4].to(device, non_blocking=True)  # HERE
    train(x[:1024])
""",
        "exposed-copies",
    ),
    Exhibit(
        "114 small tensors a batch",
        """
data = [torch.rand(1024).pin_memory() for _ in range(114)]
for _ in range(100):
    batch = [part.to(device, non_blocking=True) for part in data]  # HERE
    train(resident + batch[0][0])
""",
        "small-copies",
    ),
    Exhibit(
        "item() in each step",
        """
total = 0.0
for _ in range(150):
    loss = train(resident)
    total += loss.item()  # HERE
""",
        "synchronizations",
    ),
    Exhibit(
        "cpu() in each step",
        """
losses = []
for _ in range(150):
    loss = train(resident)
    losses.append(loss.detach().cpu())  # HERE
""",
        "synchronizations",
    ),
    Exhibit(
        "synchronize() in each step",
        """
for _ in range(150):
    train(resident)
    torch.cuda.synchronize()  # HERE
""",
        "synchronizations",
    ),
    Exhibit(
        "nonzero() in each step",
        """
for _ in range(150):
    kept = (resident[:, 0] > 0.5).nonzero()  # HERE
    train(resident[:512])
""",
        "synchronizations",
    ),
    Exhibit(
        "a decision on the loss",
        """
for _ in range(150):
    loss = train(resident)
    if loss > 1e9:  # HERE
        break
""",
        "synchronizations",
    ),
    Exhibit(
        "a round trip over the host",
        """
for _ in range(100):
    hidden = model[0](resident).detach()
    shifted = hidden.cpu() + 1
    train(shifted.to(device))  # HERE
""",
        "round-trips",
        known="without contents, a step's result and the next one's batch look alike: the longest pause parts steps",
    ),
    Exhibit(
        "registered in each step",
        """
data = torch.rand(1024, 2048)
cudart = torch.cuda.cudart()
for _ in range(60):
    cudart.cudaHostRegister(data.data_ptr(), data.numel() * 4, 0)  # HERE
    train(data.to(device, non_blocking=True))
    torch.cuda.synchronize()
    cudart.cudaHostUnregister(data.data_ptr())
""",
        "pinning",
    ),
    Exhibit(
        "decoding in the loop",
        LOADER.replace("STEPS", "100").replace("SECONDS", "0.0002")
        + """
loader = torch.utils.data.DataLoader(Decoded(), batch_size=64, pin_memory=True)
for x in loader:  # HERE
    train(x.to(device, non_blocking=True))
""",
        "waiting-for-data",
    ),
    Exhibit(
        "two workers where ten pay",
        LOADER.replace("STEPS", "150").replace("SECONDS", "0.0004")
        + """
loader = torch.utils.data.DataLoader(Decoded(), batch_size=64, num_workers=2, pin_memory=True)
for x in loader:  # HERE
    train(x.to(device, non_blocking=True))
""",
        "waiting-for-data",
    ),
    Exhibit(
        "clean: all on the GPU",
        """
total = torch.zeros((), device=device)
for _ in range(200):
    total += train(resident).detach()
print(total.item())
""",
    ),
    Exhibit(
        "clean: pinned and prefetched",
        """
data = torch.rand(4, 256, 2048).pin_memory()
side = torch.cuda.Stream()
def fetch(i):
    with torch.cuda.stream(side):
        return data[i % 4].to(device, non_blocking=True)
x = fetch(0)
for i in range(200):
    torch.cuda.current_stream().wait_stream(side)
    current, x = x, fetch(i + 1)
    current.record_stream(torch.cuda.current_stream())
    train(torch.cat([current] * 4))
torch.cuda.synchronize()
""",
    ),
    Exhibit(
        "clean: a captured graph",
        """
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        train(resident)
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    train(resident)
for _ in range(200):
    graph.replay()
torch.cuda.synchronize()
""",
    ),
]

PROFILED = """
from torch.profiler import ProfilerActivity, profile
for _ in range(30):
    train(resident)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for _ in range(5):
        train(resident)
    torch.cuda.synchronize()
kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
print("kernels:", len(kernels))
"""

# 58 kernels of some 30 us by an H200's peak rate (in float32 they took 100), and the copy and the sum that a training step has.
OVERHEAD = """
import contextlib, sys, time
import torch
a = torch.rand(2048, 2048, device="cuda", dtype=torch.bfloat16)
b = torch.rand(2048, 2048, device="cuda", dtype=torch.bfloat16)
data = torch.rand(1 << 18).pin_memory()
def step():
    x = data.to("cuda", non_blocking=True)
    y = a
    for _ in range(58):
        y = y @ b
    return float(y[0, 0] + x[0])
def rate(seconds):
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        step()
        count += 1
    return (time.perf_counter() - begin) / count
rate(0.5)
context = contextlib.nullcontext()
if "profile" in sys.argv:
    context = torch.profiler.profile(with_stack=True)
with context:
    print("step:", rate(1.5))
"""


def missing() -> str | None:
    """Why nothing can be run here; None if it can."""
    program = "import torch; print(torch.cuda.is_available())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return "this Python has no PyTorch"
    return None if result.stdout.strip() == "True" else "PyTorch sees no GPU"


def run(command: list, timeout: float = 60) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def report_of(penstock: pathlib.Path, program: pathlib.Path, *words: str) -> tuple[dict, subprocess.CompletedProcess]:
    out = program.with_suffix(".json")
    result = run([penstock, "doctor", "--json", out, "--", sys.executable, program, *words])
    return (json.loads(out.read_text()) if out.exists() else {}), result


def gain_share(finding: dict, process: dict) -> float:
    step = next(device["step_seconds"] for device in process["devices"] if device["device"] == finding["device"])
    return finding["gain_seconds_per_step"]["high"] / step if step else 0.0


def judge(exhibit: Exhibit, penstock: pathlib.Path, folder: pathlib.Path) -> dict:
    """Runs one program. The result says whether the doctor was right, and what it said."""
    program = folder / (re.sub(r"\W+", "_", exhibit.name) + ".py")
    program.write_text(exhibit.prelude + exhibit.source)
    lines = program.read_text().splitlines()
    line = next((number for number, text in enumerate(lines, 1) if "# HERE" in text), None)
    begin = time.monotonic()
    result = {"name": exhibit.name, "expected": exhibit.finding or "nothing", "right": False, "known": exhibit.known}
    try:
        report, process = report_of(penstock, program)
    except subprocess.TimeoutExpired:
        return {**result, "said": "ran for more than 60 s"}
    result["seconds"] = round(time.monotonic() - begin, 1)
    if process.returncode != 0 or not report.get("processes"):
        tail = (process.stderr.strip().splitlines() or ["nothing"])[-1]
        return {**result, "said": f"exit status {process.returncode}: {tail}"}
    recorded = report["processes"][0]
    steps = recorded["devices"][0]["steps"]
    findings = recorded["findings"]
    result["said"] = "; ".join(
        f"{f['id']} {gain_share(f, recorded):.0%} at " + ", ".join(p["function"].rsplit("/", 1)[-1] for p in f["places"][:2])
        for f in findings
    )
    result["said"] = f"{steps or 'no'} steps; " + (result["said"] or "nothing")
    if exhibit.finding is None:
        result["right"] = all(gain_share(finding, recorded) < 0.02 for finding in findings)
    else:
        place = f"{program}({line}): "
        result["right"] = any(
            finding["id"] == exhibit.finding and any(p["function"].startswith(place) for p in finding["places"])
            for finding in findings
        )
    return result


def profiled(penstock: pathlib.Path, folder: pathlib.Path) -> dict:
    """The program's own profiler must see its kernels, whoever records."""
    program = folder / "profiled.py"
    program.write_text(PRELUDE + PROFILED)
    report, process = report_of(penstock, program)
    kernels = re.search(r"kernels: (\d+)", process.stdout)
    yielded = "profiler of its own" in process.stderr
    return {
        "name": "torch.profiler in the program",
        "expected": "kernels in both",
        "right": bool(kernels and int(kernels[1]) > 50 and report.get("processes")),
        "said": f"torch.profiler: {kernels[1] if kernels else 'no'} kernels; the doctor "
        + ("made way" if yielded else "did not make way"),
    }


def overhead(penstock: pathlib.Path, folder: pathlib.Path) -> dict:
    program = folder / "overhead.py"
    program.write_text(OVERHEAD)

    def step(command: list) -> float:
        found = re.search(r"step: (\S+)", run(command).stdout)
        return float(found[1]) if found else float("nan")

    plain, recorded = [], []
    for _ in range(2):
        plain.append(step([sys.executable, program]))
        recorded.append(step([penstock, "doctor", "--", sys.executable, program]))
    base = statistics.median(plain)
    return {
        "step_ms": 1e3 * base,
        "recorded": statistics.median(recorded) / base - 1,
        "torch_profiler_with_stack": step([sys.executable, program, "profile"]) / base - 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=pathlib.Path, default=pathlib.Path("build/release/penstock"))
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if problem := missing():
        print(f"doctor_museum: skipped: {problem}")
        return 0
    penstock = options.penstock.resolve()
    chosen = [e for e in EXHIBITS if not options.only or any(part in e.name for part in options.only)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # Starting PyTorch takes longest. What must show nothing runs alone, so that others do not slow it down.
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            results = list(pool.map(lambda e: judge(e, penstock, folder), [e for e in chosen if e.finding]))
        results += [judge(exhibit, penstock, folder) for exhibit in chosen if not exhibit.finding]
        cost = None
        if not options.only:
            results.append(profiled(penstock, folder))
            cost = overhead(penstock, folder)
    width = max(len(result["name"]) for result in results)
    for result in results:
        mark = "right" if result["right"] else "known" if result.get("known") else "WRONG"
        print(f"{mark}  {result['name']:{width}}  {result['expected']:18}  {result['said']}")
    if cost:
        print(
            f"overhead on a step of {cost['step_ms']:.2f} ms: recorded {cost['recorded']:+.1%}, "
            f"torch.profiler with stacks {cost['torch_profiler_with_stack']:+.1%}"
        )
    if options.json:
        options.json.write_text(json.dumps({"exhibits": results, "overhead": cost}, indent=2) + "\n")
    return 0 if all(result["right"] or result.get("known") for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
