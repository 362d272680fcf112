"""A training with Accelerate, end to end.

    supervisor run examples/train_accelerate.py
    supervisor run --set 'faults=[{kind: sigkill, step: 150}]' examples/train_accelerate.py
    supervisor run --nproc-per-node 2 examples/train_accelerate.py     # not `accelerate launch`

It is supervised as it is. The tracker is optional: what `accelerator.log` gets is observed.
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from supervisor.integrations.accelerate import AccelerateTracker


def waves(count, seed):
    """Noisy sine waves of random frequency, and that frequency."""
    generator = torch.Generator().manual_seed(seed)
    frequency = torch.rand(count, 1, generator=generator) * 4.0 + 1.0
    phase = torch.rand(count, 1, generator=generator) * 2.0 * torch.pi
    wave = torch.sin(torch.linspace(0.0, 2.0 * torch.pi, 64) * frequency + phase)
    return wave + 0.1 * torch.randn(count, 64, generator=generator), frequency


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--mixed-precision", default="no", choices=("no", "fp16", "bf16"))
    arguments = parser.parse_args()

    accelerator = Accelerator(
        mixed_precision=arguments.mixed_precision, log_with=AccelerateTracker()
    )
    accelerator.init_trackers("waves")
    set_seed(0)
    train = torch.utils.data.TensorDataset(*waves(2048, seed=1))
    loader = torch.utils.data.DataLoader(train, batch_size=64, shuffle=True)
    x_held_out, y_held_out = (part.to(accelerator.device) for part in waves(512, seed=2))
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU())
    model.append(nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(arguments.epochs):
        model.train()
        for x, y in loader:
            loss = F.smooth_l1_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            held_out = F.smooth_l1_loss(model(x_held_out), y_held_out).item()
        accelerator.log({"epoch": epoch, "validation_loss": held_out})
        accelerator.print(f"epoch {epoch}: validation loss {held_out:.6f}", flush=True)
    accelerator.end_training()
    accelerator.print(f"result: {held_out:.6f}")


if __name__ == "__main__":
    main()
