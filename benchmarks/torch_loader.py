"""PyTorch's DataLoader on the datasets of bench_loader: run it before, on the same machine.

Shuffled samples of an in-memory tensor dataset, batch by batch to the device (pinned and non_blocking where that is a
GPU), with 0 and more worker processes; the best of them counts. Checks that every sample came once. Needs torch.
"""

import argparse
import json
import os
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cuda or cpu")
    parser.add_argument("--images", type=int, default=16384, help="samples of 3x224x224 uint8")
    parser.add_argument("--small", type=int, default=1 << 18, help="samples of 64 float32")
    parser.add_argument("--workers", help="numbers of worker processes to try, such as 0,4,8")
    parser.add_argument("--seconds", type=float, default=10, help="most time for one number of workers")
    parser.add_argument("--json", help="write the figures here")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch_loader: not measured, torch is not installed")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_loader: not measured, torch sees no GPU")
    from torch.utils.data import DataLoader, TensorDataset

    cores = len(os.sched_getaffinity(0))
    default = [0, 4, 8, 14] if cores >= 16 else [0, cores]
    workers = [int(count) for count in arguments.workers.split(",")] if arguments.workers else default
    on_gpu = arguments.device == "cuda"

    def rate(data, batch_size, count):
        numbers = torch.arange(len(data))
        loader = DataLoader(
            TensorDataset(data, numbers),
            batch_size=batch_size,
            shuffle=True,
            num_workers=count,
            pin_memory=on_gpu,
            persistent_workers=count > 0,
        )
        best = 0.0
        end = time.perf_counter() + arguments.seconds
        for epoch in range(3):
            seen = torch.zeros(len(data), dtype=torch.int32)
            begin = time.perf_counter()
            samples = 0
            for batch, number in loader:
                batch = batch.to(arguments.device, non_blocking=True)
                seen[number] += 1
                samples += len(batch)
                if time.perf_counter() > end and epoch > 0:
                    break
                if time.perf_counter() > end + arguments.seconds:
                    break
            if on_gpu:
                torch.cuda.synchronize()
            best = max(best, samples / (time.perf_counter() - begin))
            assert torch.equal(batch.cpu(), data[number]), "the last batch holds other samples than it says"
            assert int(seen.max()) == 1, "a sample came twice"
            if time.perf_counter() > end:
                break
        return best

    results = {"torch": torch.__version__, "cores": cores, "device": arguments.device}
    images = torch.randint(0, 256, (arguments.images, 3, 224, 224), dtype=torch.uint8)
    small = torch.rand(arguments.small, 64)
    for name, data, batch_size in [("images", images, 256), ("small", small, 4096)]:
        rates = {count: rate(data, batch_size, count) for count in workers}
        best = max(rates, key=rates.get)
        sample_bytes = data[0].numel() * data.element_size()
        results[name] = {
            "samples_per_second": rates[best],
            "workers": best,
            "by_workers": rates,
            "gbps": rates[best] * sample_bytes / 1e9,
        }
        listed = ", ".join(f"{count}: {value:,.0f}/s" for count, value in rates.items())
        print(
            f"PyTorch {torch.__version__} DataLoader  {name:7s} best {rates[best]:12,.0f} samples/s "
            f"{rates[best] * sample_bytes / 1e9:6.2f} GB/s   by workers: {listed}",
            flush=True,
        )

    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
