"""Trains with Lightning in two processes that are spawned, on a feed or on a Loader: spawning.py feed|loader"""

import sys

import lightning as L
import torch
from recipe import Rows, expected
from torch.utils.data import DataLoader, DistributedSampler

import penstock

LENGTH = 24


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def training_step(self, batch):
        for number in batch["id"].tolist():
            with open(f"rank{self.global_rank}", "a") as file:
                print(number, file=file)
        return self.linear(batch["x"]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make(kind, rank, world_size):
    if kind == "feed":
        sampler = DistributedSampler(Rows(LENGTH), world_size, rank)
        return penstock.feed(DataLoader(Rows(LENGTH), 4, sampler=sampler), "host")
    ids = torch.arange(LENGTH)
    data = {"id": ids, "x": expected(ids)}
    return penstock.Loader(data, 4, shuffle=True, device="host", rank=rank, world_size=world_size)


class Data(L.LightningDataModule):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.whole = make(kind, 0, 1)  # is pickled, and never iterated

    def train_dataloader(self):
        assert len(self.whole) == 6
        return make(self.kind, self.trainer.global_rank, self.trainer.world_size)


if __name__ == "__main__":
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_spawn", max_epochs=1, logger=False, enable_progress_bar=False
    )
    trainer.fit(Module(), datamodule=Data(sys.argv[1]))
