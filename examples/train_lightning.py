"""A Lightning training, end to end.

    supervisor run examples/train_lightning.py
    supervisor run --set 'faults=[{kind: sigkill, step: 150}]' examples/train_lightning.py

It is supervised as it is. The callback is optional: it adds the epoch, what was validated, alerts
in Lightning's own logger, and an end by Lightning's own way (`stop_at`).
"""

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch import nn

from supervisor.integrations.lightning import LightningCallback


def digits(count, seed):
    """Pictures of 8 x 8 with a bar in one of eight columns, under noise."""
    generator = torch.Generator().manual_seed(seed)
    column = torch.randint(0, 8, (count,), generator=generator)
    pictures = torch.randn(count, 1, 8, 8, generator=generator)
    pictures[torch.arange(count), 0, :, column] += 1.0
    return torch.utils.data.TensorDataset(pictures, column)


class Classifier(lightning.LightningModule):
    def __init__(self, learning_rate=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 64, 8),
        )

    def training_step(self, batch, index):
        pictures, column = batch
        return F.cross_entropy(self.network(pictures), column)

    def validation_step(self, batch, index):
        pictures, column = batch
        logits = self.network(pictures)
        self.log("validation_loss", F.cross_entropy(logits, column))
        self.log("accuracy", (logits.argmax(1) == column).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    loader = torch.utils.data.DataLoader(digits(2048, seed=1), batch_size=64, shuffle=True)
    held_out = torch.utils.data.DataLoader(digits(512, seed=2), batch_size=512)
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,  # the supervisor's checkpoints resume bit for bit
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LightningCallback(log_alerts=False)],
    )
    trainer.fit(Classifier(), loader, held_out)
    measured = trainer.callback_metrics
    print(f"result: {measured['validation_loss']:.6f} {measured['accuracy']:.3f}")


if __name__ == "__main__":
    main()
