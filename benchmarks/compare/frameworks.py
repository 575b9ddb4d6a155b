"""A step of 10 ms in Lightning, Accelerate and the Trainer of transformers.

As they are, fed, and with batches that are on the device already. A step lasts from its beginning to that of the next.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from .data import Columns, Samples
from .feeding import Compute, Steps
from .loaders import Resident, loader_of
from .setting import OURS, Contender, Result, Setting, WrongBytes, attempt, tidy

SETTLE = 12  # steps that are not counted


class Model(torch.nn.Module):
    """Matrix products of 10 ms in each step. Notes when steps begin."""

    def __init__(self, setting: Setting, reference: torch.Tensor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self._compute = Compute(setting, 2 if setting.quick else 10)
        self._reference, self.steps = reference, Steps(setting)
        self.wrong = torch.zeros((), dtype=torch.int64, device=setting.target)

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> dict[str, torch.Tensor]:
        self.steps.begin()
        self._compute(x)
        if len(self.steps.begins) <= SETTLE:
            self.wrong += (x != self._reference[number]).any()
        self.steps.end()
        return {"loss": self.weight * 0}


def lightning(model: Model, loader: DataLoader, wrap: Callable, steps: int, setting: Setting) -> None:
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet: dict[str, Any] = dict.fromkeys(off, False)
    accelerator = "gpu" if setting.on_gpu else "cpu"
    trainer = framework.Trainer(max_steps=steps, max_epochs=-1, accelerator=accelerator, devices=1, **quiet)
    trainer.fit(Module(), wrap(loader))


def accelerate(model: Model, loader: DataLoader, wrap: Callable, steps: int, setting: Setting) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not setting.on_gpu)
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = wrap(accelerator.prepare(loader))
    while len(model.steps.begins) < steps:
        for batch in loader:
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()


def transformers(model: Model, loader: DataLoader, wrap: Callable, steps: int, setting: Setting) -> None:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class Feeding(Trainer):
        def get_train_dataloader(self) -> Any:
            return wrap(super().get_train_dataloader())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=loader.batch_size or 1,
            dataloader_num_workers=loader.num_workers,
            dataloader_persistent_workers=loader.persistent_workers,
            dataloader_pin_memory=loader.pin_memory,
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not setting.on_gpu,
        )
        collate = loader.collate_fn
        trainer = Feeding(model, arguments, train_dataset=loader.dataset, data_collator=collate)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


FRAMEWORKS = {"Lightning": lightning, "Accelerate": accelerate, "Trainer": transformers}


def compare(images: Samples, setting: Setting) -> Iterator[list[Result]]:
    """The results with each framework, one after the other."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    reference = images.x.to(setting.target)
    for name, run in FRAMEWORKS.items():
        needs = "transformers" if name == "Trainer" else name.lower()
        measure = measure_with(run, images, reference, setting)
        yield [attempt(f"a step of 10 ms in {name}", way, setting, measure) for way in ways(needs)]


def measure_with(run: Callable, images: Samples, reference: torch.Tensor, setting: Setting) -> Callable:
    steps = SETTLE + (12 if setting.quick else 150)

    def measure(way: Contender, result: Result) -> None:
        timed: dict[int, float] = {}
        for workers in way.options(setting):
            model = Model(setting, reference)
            run(model, *way.make(images, setting, workers), steps, setting)
            if int(model.wrong):
                raise WrongBytes(f"{int(model.wrong)} of the first batches hold other samples")
            timed[workers] = statistics.fmean(model.steps.periods()[SETTLE:])
            tidy(setting)
        result.option = min(timed, key=lambda workers: timed[workers])
        result.verified = True
        result.figures = {"step_ms": timed[result.option], "by_option": timed}

    return measure


def ways(needs: str) -> list[Contender]:
    """Each makes a DataLoader, and what wraps it once the framework has prepared it."""

    def resident(samples: Samples, setting: Setting, workers: int) -> tuple:
        loader = rows_of(samples, setting, workers, False)
        resident = Resident(loader.dataset, loader.batch_size, setting, len(loader))
        return loader, lambda prepared: resident

    def as_it_is(samples: Samples, setting: Setting, workers: int) -> tuple:
        return rows_of(samples, setting, workers, setting.on_gpu), lambda prepared: prepared

    def fed(samples: Samples, setting: Setting, workers: int) -> tuple:
        import penstock

        def wrap(loader: Any) -> Any:
            device = "auto" if hasattr(loader, "base_dataloader") else setting.device
            return penstock.feed(loader, device, native=workers == 0)

        return rows_of(samples, setting, workers, False), wrap

    ours = OURS | {"needs": (needs, "penstock")}
    none: dict[str, Any] = {"options": lambda setting: (0,)}
    return [
        Contender("resident", resident, (needs,), ceiling=True, **none),
        Contender("as it is, best of N workers", as_it_is, (needs,), options=lambda setting: setting.workers),
        Contender("penstock.feed, workers", fed, **ours, options=lambda setting: (min(setting.workers),)),
        Contender("penstock.feed", fed, **ours, **none),
    ]


def rows_of(samples: Samples, setting: Setting, workers: int, pin: bool) -> DataLoader:
    table = Columns({"x": samples.x, "number": samples.number})
    return loader_of(table, 16 if setting.quick else samples.batch_size, workers, pin, drop_last=True)
