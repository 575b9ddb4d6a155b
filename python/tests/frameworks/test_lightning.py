"""What Lightning does to a loader that the recipes do not show."""

import pytest
import torch
from launch import HERE, launch
from recipe import CountingSGD, Journal, Model, Rows
from torch.utils.data import DataLoader

import penstock

lightning = pytest.importorskip("lightning")


class Module(lightning.LightningModule):
    def __init__(self, journal):
        super().__init__()
        self.journal, self.model = journal, Model(journal)

    def training_step(self, batch):
        return self.model(batch)

    def validation_step(self, batch):
        self.journal.steps.append(batch["id"].tolist())

    def predict_step(self, batch):
        return batch["id"]

    def configure_optimizers(self):
        return CountingSGD(self.parameters(), self.journal)


def fit(directory, train, validate=None, **options):
    journal = Journal(0)
    trainer = lightning.Trainer(
        default_root_dir=directory, logger=False, enable_progress_bar=False, num_sanity_val_steps=0, **options
    )
    trainer.fit(Module(journal), train, validate)
    return journal


def test_the_same_steps_as_with_the_bare_loader(tmp_path):
    """With validation, accumulation and persistent workers, and each loader used by two trainers in turn."""

    def loaders():
        generator = torch.Generator().manual_seed(1)
        train = DataLoader(
            Rows(22), 4, shuffle=True, generator=generator, num_workers=1, persistent_workers=True, drop_last=True
        )
        return train, DataLoader(Rows(6), 4)

    options = {"max_epochs": 2, "accumulate_grad_batches": 3}
    seen = []
    for wrap in (lambda loader: loader, penstock.feed):
        train, validate = map(wrap, loaders())
        journals = [fit(tmp_path, train, validate, **options) for _ in range(2)]
        seen.append([(len(journal.steps), journal.optimizer_steps) for journal in journals])
        for journal in journals:
            epochs = [{number for step in journal.steps[start : start + 5] for number in step} for start in (0, 7)]
            assert [len(epoch) for epoch in epochs] == [20, 20]
            assert journal.steps[5:7] == journal.steps[12:14] == [[0, 1, 2, 3], [4, 5]]
    assert seen[1] == seen[0] == [(14, 4)] * 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_to_overfit(shuffle, tmp_path):
    fed = penstock.feed(DataLoader(Rows(24), 4, shuffle=shuffle))
    if shuffle:
        with pytest.raises(ValueError, match="DataLoader"):
            fit(tmp_path, fed, overfit_batches=2, max_epochs=2)
    else:
        assert fit(tmp_path, fed, overfit_batches=2, max_epochs=2).steps == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


class FeedingStrategy(lightning.pytorch.strategies.SingleDeviceStrategy):
    def process_dataloader(self, dataloader):
        assert isinstance(dataloader, DataLoader)
        return penstock.feed(dataloader, self.root_device)


def test_a_strategy_feeds_what_lightning_made_of_the_loader(tmp_path):
    def strategy():
        return FeedingStrategy("cuda:0" if torch.cuda.is_available() else "cpu")

    shuffled = DataLoader(Rows(24), 4, shuffle=True)
    overfitted = fit(tmp_path, shuffled, overfit_batches=2, max_epochs=2, strategy=strategy())
    assert overfitted.steps == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    trainer = lightning.Trainer(default_root_dir=tmp_path, logger=False, enable_progress_bar=False, strategy=strategy())
    predicted = trainer.predict(Module(Journal(0)), DataLoader(Rows(10), 4))
    assert [batch.tolist() for batch in predicted] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("kind", ["feed", "loader"])
def test_spawned_processes(kind, tmp_path):
    launch(1, [HERE / "spawning.py", kind], tmp_path)
    shares = [[int(line) for line in (tmp_path / f"rank{rank}").read_text().split()] for rank in range(2)]
    assert len(shares[0]) == len(shares[1]) == 12
    assert sorted(shares[0] + shares[1]) == list(range(24))
