"""Iterates loaders of each kind in one of several processes, and writes down which of them warn."""

import importlib.util
import json
import os
import pathlib
import sys
import warnings

import torch
from recipe import Rows
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import penstock


class Stream(IterableDataset):
    def __init__(self, length=24):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(Rows(self.length))


def warned(loader, **options):
    """How often two epochs of a feed warn, and what they say."""
    fed = penstock.feed(loader, "host", **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            for _ in fed:
                pass
    return [str(w.message) for w in caught if issubclass(w.category, penstock.NotShardedWarning)]


def look(directory: pathlib.Path) -> dict:
    results = {}
    results["before torch.distributed"] = warned(DataLoader(Rows(24), 4))
    torch.distributed.init_process_group("gloo")
    results["DataLoader"] = warned(DataLoader(Rows(24), 4, shuffle=True))
    results["a list"] = warned([torch.ones(2)])
    results["sharded=True"] = warned(DataLoader(Rows(24), 4), sharded=True)
    results["DistributedSampler"] = warned(DataLoader(Rows(24), 4, sampler=DistributedSampler(Rows(24))))
    inner = torch.utils.data.BatchSampler(DistributedSampler(Rows(24)), 4, False)
    results["DistributedSampler in a batch_sampler"] = warned(DataLoader(Rows(24), batch_sampler=inner))
    if importlib.util.find_spec("accelerate"):
        import accelerate
        from accelerate.data_loader import IterableDatasetShard

        share = IterableDatasetShard(Stream(), 4, num_processes=2, process_index=int(os.environ["RANK"]))
        results["accelerate, IterableDatasetShard"] = warned(DataLoader(share, 4))
        accelerator = accelerate.Accelerator(cpu=True)
        results["accelerate, prepared after the feed"] = warned(
            accelerator.prepare(penstock.feed(DataLoader(Rows(24))))
        )
        prepared = accelerator.prepare(DataLoader(Rows(24), 4))
        results["accelerate, prepared"] = warned(prepared)
        results["accelerate, skipped"] = warned(accelerate.skip_first_batches(prepared, 1))
        results["accelerate, iterable"] = warned(accelerator.prepare(DataLoader(Stream(), 4)))
    if importlib.util.find_spec("transformers"):
        from transformers.trainer_pt_utils import IterableDatasetShard as TheirShard

        share = TheirShard(Stream(), 4, num_processes=2, process_index=int(os.environ["RANK"]))
        results["transformers, IterableDatasetShard"] = warned(DataLoader(share, 4))
    if importlib.util.find_spec("webdataset"):
        import webdataset

        names = [str(directory / f"{shard}.tar") for shard in range(2)]
        for name in names if os.environ["RANK"] == "0" else []:
            with webdataset.TarWriter(name) as writer:
                writer.write({"__key__": "0", "id.cls": 1})
        torch.distributed.barrier()
        for title, splitter in (("split_by_node", webdataset.split_by_node), ("no splitter", None)):
            stream = webdataset.WebDataset(names, shardshuffle=False, nodesplitter=splitter, empty_check=False)
            results[f"webdataset, {title}"] = warned(DataLoader(stream.decode(), batch_size=None))
            results[f"webdataset, WebLoader, {title}"] = warned(webdataset.WebLoader(stream.decode(), batch_size=None))
    if importlib.util.find_spec("datasets"):
        import datasets
        from datasets.distributed import split_dataset_by_node

        stream = datasets.Dataset.from_dict({"id": list(range(8))}).to_iterable_dataset(num_shards=2)
        results["datasets, streamed"] = warned(DataLoader(stream.with_format("torch")))
        stream = split_dataset_by_node(stream, int(os.environ["RANK"]), 2)
        results["datasets, split_dataset_by_node"] = warned(DataLoader(stream.with_format("torch")))
    torch.distributed.destroy_process_group()
    return results


if __name__ == "__main__":
    output = pathlib.Path(sys.argv[1])
    (output / f"{os.environ['RANK']}.json").write_text(json.dumps(look(output)))
