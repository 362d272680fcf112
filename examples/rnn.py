"""Trains a GRU to foretell a synthetic signal, with its hidden state carried from batch to batch.

The carried state lives in a variable of the loop, outside every module: a resume that forgets it
goes on with another training. `--wild` leaves out the clipping and raises the learning rate.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

LENGTH = 32


def make_signals(count, length, generator):
    """Sums of three sines of random frequency and phase, with a little noise."""
    time = torch.arange(length) / 20
    frequency = 0.5 + 2 * torch.rand(count, 3, 1, generator=generator)
    phase = 6.28 * torch.rand(count, 3, 1, generator=generator)
    clean = torch.sin(frequency * time + phase).mean(1)
    return clean + 0.02 * torch.randn(count, length, generator=generator)


class Forecaster(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.gru = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, signal, hidden):
        seen, hidden = self.gru(signal[..., None], hidden)
        return self.head(seen)[..., 0], hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wild", action="store_true", help="provoke exploding gradients")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    signals = make_signals(32, 20 * LENGTH + 1, torch.Generator().manual_seed(1))

    model = Forecaster()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.3 if options.wild else 2e-3)
    for epoch in range(options.epochs):
        hidden = None
        total = 0.0
        for start in range(0, signals.shape[1] - 1, LENGTH):
            window = signals[:, start : start + LENGTH + 1]
            forecast, hidden = model(window[:, :-1], hidden)
            hidden = hidden.detach()
            loss = F.mse_loss(forecast, window[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            if not options.wild:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}  mean loss {total * LENGTH / signals.shape[1]:.5f}", flush=True)
    print(f"final loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
