"""Runs one recipe of a document, over and over, and writes down which samples it trained on.

recipe.py DOCUMENT SECTION BLOCK [--length SAMPLES] --limits LIMIT... --output DIRECTORY, alone or under torchrun

Runs a block of the section, behind the blocks that stand before all sections, once for each limit: a run is broken off
when it asks for one step more than its limit; with the limit 0 it goes on to its end. The files of a run are there for
the next one, so that a recipe that saves can resume; in place of a limit, "anew" takes them away. Writes
DIRECTORY/RANK.json.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import sys

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

ROOT = pathlib.Path(__file__).resolve().parents[3]
LENGTH = 48


def sections(document: str) -> dict[str, str]:
    """The sections of a document by their titles. The text before the first has none."""
    parts = re.split(r"^## (.*)\n", (ROOT / document).read_text(), flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


def blocks(document: str, section: str) -> list[str]:
    """The Python of a section."""
    return re.findall(r"^```python\n(.*?)^```$", sections(document)[section], re.MULTILINE | re.DOTALL)


class Interrupted(Exception):
    pass


class Journal:
    """The record of one run."""

    def __init__(self, limit: int):
        self.limit, self.steps, self.optimizer_steps = limit, [], 0

    def step(self, ids: torch.Tensor, values: torch.Tensor) -> None:
        if self.limit and len(self.steps) == self.limit:
            raise Interrupted
        assert torch.equal(values.cpu(), expected(ids.cpu())), "the bytes of these samples"
        self.steps.append(ids.flatten().tolist())


def expected(ids):
    return torch.stack([ids.flatten() * 3.0, ids.flatten() + 0.5], 1)


class Rows(Dataset):
    def __init__(self, length=LENGTH):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError
        return {"id": torch.tensor(index), "x": expected(torch.tensor(index))[0]}


class TensorRows(Rows):
    """The same rows, which a feed may gather natively."""

    def __init__(self, length=LENGTH):
        super().__init__(length)
        self.rows = default_collate([self[index] for index in range(length)])

    @property
    def __penstock_tensors__(self):
        return self.rows


class Model(torch.nn.Module):
    """A loss of a batch; as transformers calls it, a dict with the loss."""

    def __init__(self, journal, named=False):
        super().__init__()
        self.linear, self.journal, self.named = torch.nn.Linear(2, 1), journal, named

    def forward(self, batch=None, id=None, x=None):
        batch = {"id": id, "x": x} if batch is None else batch
        self.journal.step(batch["id"], batch["x"])
        loss = self.linear(batch["x"]).mean()
        return {"loss": loss} if self.named else loss


class CountingSGD(torch.optim.SGD):
    def __init__(self, parameters, journal):
        super().__init__(parameters, lr=0.0)
        self.journal = journal

    def step(self, *arguments, **options):
        self.journal.optimizer_steps += 1
        return super().step(*arguments, **options)


def lightning_module(journal):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model(journal)

        def training_step(self, batch):
            return self.model(batch)

        def configure_optimizers(self):
            return CountingSGD(self.parameters(), journal)

    return Module()


def graphs():
    from torch_geometric.data import Data

    edges = torch.tensor([[0], [0]])
    return [Data(x=expected(torch.tensor(i)), edge_index=edges, id=torch.tensor([i])) for i in range(LENGTH)]


def rows():
    """A Hugging Face dataset that was selected from a larger one, so that it holds indices."""
    import datasets

    ids = np.arange(2 * LENGTH)[::-1].copy()
    table = datasets.Dataset.from_dict({"id": ids, "x": expected(torch.from_numpy(ids)).float().numpy()})
    table = table.cast_column("x", datasets.Sequence(datasets.Value("float32"), length=2))
    return table.select(range(LENGTH, 2 * LENGTH)).shuffle(seed=3)


def shards(directory):
    import webdataset

    directory.mkdir(exist_ok=True)
    names = []
    for shard in range(8):
        names.append(str(directory / f"{shard}.tar"))
        with webdataset.TarWriter(names[-1]) as writer:
            for i in range(shard * LENGTH // 8, (shard + 1) * LENGTH // 8):
                x = expected(torch.tensor(i))[0].numpy()
                writer.write({"__key__": f"{i:05}", "id.cls": i, "x.npy": x})
    return names


def tensordict():
    from tensordict import TensorDict

    ids = torch.arange(LENGTH)
    return TensorDict({"id": ids, "x": expected(ids)}, batch_size=[LENGTH])


def names_for(section: str, length: int, journal: Journal) -> dict:
    """The names that a section's blocks use."""

    def train_step(batch):
        if isinstance(batch, list | tuple):
            ids, values = batch
        else:
            ids, values = (batch.id, batch.x) if hasattr(batch, "edge_index") else (batch["id"], batch["x"])
        journal.step(torch.as_tensor(ids), torch.as_tensor(values))

    names = {"__name__": "recipe", "dataset": Rows(length), "train_step": train_step}
    if section == "Lightning":
        names["model"] = lightning_module(journal)
    else:
        names["model"] = Model(journal, named="transformers" in section)
        names["optimizer"] = CountingSGD(names["model"].parameters(), journal)
    arrays = ("One copy", "The same batches", "Over the links")
    if section.endswith("a Loader") or section == "A Loader" or section.startswith(arrays):
        ids = torch.arange(length)
        names["data"] = {"id": ids, "x": expected(ids)}
    if section.startswith("Tensors"):
        names["dataset"] = TensorRows(length)
    if "Geometric" in section:
        names["graphs"] = graphs()
    if "Hugging Face" in section:
        names["rows"] = rows()
    if section == "WebDataset":
        names["shards"] = shards(pathlib.Path(f"shards{os.getpid()}"))
    if section == "TensorDict":
        names["samples"] = tensordict()
    return names


def forget() -> None:
    """Accelerate keeps its state for the whole process; a new run begins without."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def run(document: str, section: str, block: int, length: int, limit: int) -> dict:
    journal = Journal(limit)
    names = names_for(section, length, journal)
    torch.manual_seed(0)
    if torch.distributed.is_initialized():
        torch.distributed.init_process_group = lambda: None  # all runs are of one group
    interrupted = False
    for program in [*blocks(document, ""), blocks(document, section)[block]]:
        try:
            exec(compile(program, f"{document}: {section}", "exec"), names)
        except Interrupted:
            interrupted = True
            break
    forget()
    seen = [torch.as_tensor(ids).tolist() for ids in names.get("seen", [])]
    return {
        "steps": journal.steps,
        "optimizer_steps": journal.optimizer_steps,
        "interrupted": interrupted,
        "seen": seen,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("document")
    parser.add_argument("section")
    parser.add_argument("block", type=int)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--limits", nargs="+", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    rank = os.environ.get("RANK", "0")
    runs = []
    for number, limit in enumerate(["anew", *options.limits]):
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if limit == "anew":
            directory = options.output / f"files{number}"
            directory.mkdir(exist_ok=True)
            os.chdir(directory)
        else:
            runs.append(run(options.document, options.section, options.block, options.length, int(limit)))
    (options.output / f"{rank}.json").write_text(json.dumps(runs))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # one that is done early would close connections that another still opens
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
