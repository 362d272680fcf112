"""An ordinary training that is killed once in the middle, and stamps each step with the time.

    python restartable_trainer.py --kill-at 500 --steps 530 [--own-checkpoints] [--load-ms 20]

Stamps go to the file ``stamps``: process, step, unix seconds. They are written past the supervisor,
so that steps which it replays are stamped too.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAVE_EVERY = 100


class SlowRows(TensorDataset):
    """Rows that take a while to load."""

    load_s = 0.0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(self.load_s)
        return super().__getitem__(index)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--kill-at", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--own-checkpoints", action="store_true")
    parser.add_argument("--load-ms", type=float, default=0.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(64, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = (SlowRows if options.load_ms else TensorDataset)(torch.randint(0, 64, (2048, 33)))
    SlowRows.load_s = options.load_ms / 1000.0
    loader = DataLoader(data, batch_size=options.batch, shuffle=True)
    stamps = os.open("stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    step = 0
    if options.own_checkpoints and os.path.exists("own.pt"):
        saved = torch.load("own.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < options.steps:
        for (rows,) in loader:
            logits = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(step, loss.item())
            os.write(stamps, f"{os.getpid()} {step} {time.time()}\n".encode())
            if step == options.kill_at and not os.path.exists("struck"):
                os.close(os.open("struck", os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)
            if options.own_checkpoints and step % SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step}, "own.pt")
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
