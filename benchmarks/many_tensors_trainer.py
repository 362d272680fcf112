"""A training of many small parameter tensors that writes down the CPU time of its steps, by turns.

python many_tensors_trainer.py --tensors 20000 --used 500 --turns 6 --turn-steps 60 --out FILE
                               [--clip] [--go F --done F]

The pipes are those of `timed_trainer`.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from torch import nn

FIRST_STEPS = 20


class ManyTensors(nn.Module):
    """`tensors` parameters, of which `used` take part in its forward."""

    def __init__(self, tensors: int, used: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(tensors // 2))
        self._used = used // 2
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=1e-3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: self._used]:
            hidden = hidden + layer(hidden)
        return hidden


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--used", type=int, required=True)
    parser.add_argument("--clip", action="store_true")
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--turn-steps", type=int, required=True)
    parser.add_argument("--go")
    parser.add_argument("--done")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ManyTensors(options.tensors, options.used)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    go = os.open(options.go, os.O_RDONLY) if options.go else -1
    done = os.open(options.done, os.O_WRONLY) if options.done else -1
    clock, waited_s, turns = time.monotonic, 0.0, []
    time.monotonic = lambda: clock() - waited_s  # type: ignore[assignment]
    for turn in range(1 + options.turns):
        began = clock()
        if go >= 0:
            os.read(go, 1)
        waited_s += clock() - began
        times = []
        for _ in range(options.turn_steps if turn else FIRST_STEPS):
            started = time.process_time()
            loss = (model(torch.randn(4, 4)) - 1.0).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if options.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            times.append(time.process_time() - started)
        turns.append(times)
        if done >= 0:
            os.write(done, b".")
    with open(options.out, "w") as file:
        json.dump(turns, file)


if __name__ == "__main__":
    main()
