#!/usr/bin/env python3
"""penstock beside its alternatives: one run, the same data, the same consumer, the bytes of each checked.

    compare.py --device cuda --json compare.json > compare.md
    compare.py --device host --quick --only small,tensor

A contender counts only after an epoch in which every sample that arrived was compared, on the device, with the dataset;
other tensors are compared after they were brought back. What is not installed, or needs a GPU where there is none, is
named as not measured. The table goes to standard output as Markdown, progress to standard error. Exits 1 where one of
penstock's own contenders failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import platform
import sys
from typing import Any

WORKLOADS = {
    "images": "shuffled batches of 256 from 3x224x224 uint8",
    "workers": "the same from worker processes, that stack samples or decompress them",
    "manners": "a small copy of the program's own beside the same with workers",
    "float32": "the same, delivered as float32",
    "train": "whole training steps: ResNets, a perceptron, a recommender",
    "frameworks": "a step of 10 ms in Lightning, Accelerate and the Trainer of transformers",
    "small": "shuffled batches of 4096 from samples of 64 float32",
    "columns": "tables of 1 to 400 narrow columns",
    "tensor": "one pageable tensor of 1 GiB",
    "models": "state dicts to the device and back, and to and from a safetensors file",
    "cost": "what feed costs the thread that trains",
}


def parse() -> argparse.Namespace:
    listed = "\n".join(f"  {name:10s}{text}" for name, text in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"workloads:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu", "host"], help="default: cuda where PyTorch sees a GPU")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas between, in this order")
    parser.add_argument("--seconds", type=float, help="of each measured run; default 2, with --quick 0.3")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and times: does it run?")
    parser.add_argument("--json", help="write all figures here")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    unknown = set(arguments.only) - WORKLOADS.keys()
    if unknown:
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return arguments


def make_setting(arguments: argparse.Namespace) -> Any:
    import torch
    from compare.setting import Setting

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "host")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("compare: not measured, PyTorch sees no GPU")
    seconds = arguments.seconds or (0.3 if arguments.quick else 2.0)
    steps = (2.0,) if arguments.quick else (2.0, 10.0)
    return Setting("cuda" if device == "cuda" else "host", seconds, arguments.quick, steps)


def about(setting: Any) -> dict[str, Any]:
    import torch

    described = {
        "device": torch.cuda.get_device_name() if setting.on_gpu else "the host",
        "cores": setting.cores,
        "load": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "seconds of a run": setting.seconds,
    }
    try:
        import penstock

        described["penstock"] = penstock.__version__
    except ImportError as error:
        described["penstock"] = f"not installed ({error})"
    return described


def runs(arguments: argparse.Namespace, setting: Any) -> Any:
    """The results of each workload, in the order of `--only`: a run that is stopped has those of the first."""
    import torch
    from compare import columns, data, feeding, frameworks, manners, models, training, transfers, workers

    count = 1024 if arguments.quick else 16384 if setting.on_gpu else 4096
    small_count = 1 << (15 if arguments.quick else 20 if setting.on_gpu else 18)
    images = functools.cache(lambda: data.images(count, torch.uint8))
    of_workloads = {
        "images": lambda: [feeding.feed_all(images(), setting)],
        "workers": lambda: [workers.compare(images(), setting)],
        "manners": lambda: [manners.compare(images(), setting)],
        "float32": lambda: [feeding.feed_all(data.images(count, torch.float32, images().x), setting)],
        "train": lambda: training.compare(images(), data.small(small_count), setting),
        "frameworks": lambda: frameworks.compare(images(), setting),
        "small": lambda: [feeding.feed_all(data.small(small_count), setting)],
        "columns": lambda: [columns.compare(setting)],
        "tensor": lambda: [transfers.one_large(setting)],
        "models": lambda: [models.compare(setting)],
        "cost": lambda: [transfers.feed_costs(setting)],
    }
    for name in arguments.only:
        yield from of_workloads[name]()


def main() -> int:
    arguments = parse()
    faulthandler.enable()
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit("compare: not measured, torch is not installed")
    from compare import report

    setting = make_setting(arguments)
    described = about(setting)
    print(", ".join(f"{name} {value}" for name, value in described.items()), file=sys.stderr)
    results: list = []
    for part in runs(arguments, setting):
        results += part
        # Written after each workload, so that the results stay if a later one ends the process.
        if arguments.json:
            report.write_json(arguments.json, results, described)
    print(report.markdown(results, described))
    return 1 if any(result.ours and result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
