"""`penstock run --feed` with trainers that make, wrap and iterate the DataLoaders."""

import pytest

from ahead_programs import side_by_side

ACCELERATE = """
    import accelerate

    accelerator = accelerate.Accelerator(cpu=device == "cpu")
    loader = accelerator.prepare(DataLoader(Numbers(), 2, shuffle=True, num_workers=1))
    say(type(loader).__name__, len(loader), loader.total_batch_size)
    for epoch in range(2):
        for x, y in loader:
            say(x, y, loader.end_of_dataloader, torch.rand(1))
"""
LIGHTNING = """
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(3, 1)

        def training_step(self, batch):
            x, y = batch
            loss = (self.model(x).squeeze() - y).square().mean()
            say(x, y, loss)
            return loss

        def validation_step(self, batch):
            say(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-4)

    train = DataLoader(Numbers(), 2, shuffle=True, num_workers=1, persistent_workers=True)
    trainer = lightning.Trainer(
        max_epochs=2, logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(Module(), train, DataLoader(Numbers(6), 2))
"""
TRAINER = """
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(3, 1)

        def forward(self, x, labels):
            loss = (self.model(x).squeeze(1) - labels).square().mean()
            say(x, labels, loss)
            return {"loss": loss}

    samples = [{"x": torch.full((3,), float(i)), "labels": torch.tensor(i)} for i in range(24)]
    arguments = transformers.TrainingArguments(
        "out", per_device_train_batch_size=2, num_train_epochs=2, dataloader_num_workers=1, learning_rate=1e-4,
        report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no", use_cpu=device == "cpu",
    )
    trainer = transformers.Trainer(Model(), arguments, train_dataset=samples)
    trainer.remove_callback(transformers.PrinterCallback)  # which prints times
    trainer.train()
"""


@pytest.mark.parametrize(
    "module, program", [("accelerate", ACCELERATE), ("lightning", LIGHTNING), ("transformers", TRAINER)]
)
def test_a_trainer_gets_what_it_would_get(tmp_path, module, program):
    pytest.importorskip(module)
    assert 19 in side_by_side(tmp_path, program)
