"""One small training in each framework's own idiom, for `benchmarks.resume_matrix`.

    python framework_trainers.py FRAMEWORK CASE OUT [--kill-at STEP] [--resume]

Saves every `SAVE_EVERY` updates in the way that the framework's documentation recommends, is killed
right after an update, and continues with ``--resume`` as recommended too. OUT gets the weights.
`plain` is the loop without any framework; it saves nothing and knows no ``--resume``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SAVE_EVERY = 5
EPOCHS = 4
BATCH = 8
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Case:
    """What is special about a training."""

    dropout: float = 0.0
    noise: float = 0.0
    workers: int = 0
    accumulate: int = 1


CASES = {
    "shuffled": Case(),
    "dropout": Case(dropout=0.2),
    "augmentation in two loader workers": Case(noise=0.1, workers=2),
    "accumulation": Case(accumulate=3),
}


class Samples(Dataset[dict[str, torch.Tensor]]):
    """96 samples of 8 numbers; with noise that is new each time, as augmentation is."""

    def __init__(self, noise: float) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(96, 8, generator=generator)
        self.y = (self.x[:, :1] * 2 + self.x[:, 1:2]).sin()
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = self.x[index]
        if self.noise:
            x = x + self.noise * torch.randn(8) + self.noise * random.random()
        return {"x": x, "labels": self.y[index]}


class Net(nn.Module):
    """Returns the loss, as models of Transformers do."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": F.mse_loss(self.layers(x), labels)}


def loader(case: Case) -> DataLoader[dict[str, torch.Tensor]]:
    return DataLoader(Samples(case.noise), BATCH, shuffle=True, num_workers=case.workers)


def die_at(step: int, kill_at: int | None) -> None:
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


def newest(prefix: str) -> str:
    """The checkpoint of the highest step; names end with the step."""
    names = [name for name in os.listdir(CHECKPOINTS) if name.startswith(prefix)]
    return os.path.join(CHECKPOINTS, max(names, key=lambda n: int(n.split("-")[1].split(".")[0])))


def plain(case: Case, kill_at: int | None, resume: bool) -> nn.Module:
    torch.manual_seed(1)
    random.seed(1)
    model = Net(case.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = loader(case)
    for _ in range(EPOCHS):
        for number, batch in enumerate(batches):
            (model(**batch)["loss"] / case.accumulate).backward()
            if (number + 1) % case.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return model


def accelerate(case: Case, kill_at: int | None, resume: bool) -> nn.Module:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    set_seed(1)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=case.accumulate,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    model = Net(case.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(case))
    done = 0
    if resume:
        folder = newest("step-")
        accelerator.load_state(folder)
        done = int(folder.split("-")[-1])
    updates_an_epoch = len(batches) // case.accumulate
    step = done
    for epoch in range(done // updates_an_epoch, EPOCHS):
        batches.set_epoch(epoch)
        skipped = done % updates_an_epoch if epoch == done // updates_an_epoch else 0
        rest = accelerator.skip_first_batches(batches, skipped * case.accumulate)
        for batch in rest if skipped else batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if step % SAVE_EVERY == 0:
                    accelerator.save_state(os.path.join(CHECKPOINTS, f"step-{step}"))
                die_at(step, kill_at)
    return accelerator.unwrap_model(model)


def transformers(case: Case, kill_at: int | None, resume: bool) -> nn.Module:
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    class Killer(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            die_at(state.global_step, kill_at)

    set_seed(1)
    arguments = TrainingArguments(
        CHECKPOINTS,
        seed=1,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=case.accumulate,
        dataloader_num_workers=case.workers,
        save_steps=SAVE_EVERY,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    model = Net(case.dropout)
    trainer = Trainer(model, arguments, train_dataset=Samples(case.noise), callbacks=[Killer()])
    trainer.train(resume_from_checkpoint=True if resume else None)
    return model


def lightning(case: Case, kill_at: int | None, resume: bool) -> nn.Module:
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(case.dropout)

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Killer(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            die_at(trainer.global_step, kill_at)

    seed_everything(1, workers=True)
    module = Module()
    saving = ModelCheckpoint(
        CHECKPOINTS, "at-{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1,
        auto_insert_metric_name=False,
    )  # fmt: skip
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=case.accumulate,
        callbacks=[saving, Killer()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader(case), ckpt_path=newest("at-") if resume else None)
    return module.net


FRAMEWORKS = {
    "lightning": lightning,
    "transformers": transformers,
    "accelerate": accelerate,
    "plain": plain,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("out")
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train = FRAMEWORKS[options.framework]
    model = train(CASES[options.case], options.kill_at, options.resume)
    torch.save(model.state_dict(), options.out)


if __name__ == "__main__":
    main()
