"""An ordinary training that writes down how long each of its steps took, a turn at a time.

python timed_trainer.py --batch 16 --turns 20 --turn-steps 64 --out times.json [--go F --done F]

With the two named pipes it waits for a byte from the one before each turn, and gives one to the
other behind it, so that two trainings can take turns on one machine. Its `time.monotonic` stands
still while it waits: supervision may do what it does by time for the training's own time alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from torch import nn


class OwnTime:
    """`time.monotonic` without the turns of the others."""

    def __init__(self) -> None:
        self._clock = time.monotonic
        self._waited_s = 0.0

    def __call__(self) -> float:
        return self._clock() - self._waited_s

    def wait(self, go: int) -> None:
        began = self._clock()
        os.read(go, 1)
        self._waited_s += self._clock() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--turn-steps", type=int, default=300)
    parser.add_argument("--first-turn", type=int, help="steps of the first turn")
    parser.add_argument("--cpu", action="store_true", help="CPU time of the process")
    parser.add_argument("--go")
    parser.add_argument("--done")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, options.layers)
    model = nn.Sequential(nn.Embedding(64, 64), encoder, nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(0, 64, (4096, 33))
    go = os.open(options.go, os.O_RDONLY) if options.go else -1
    done = os.open(options.done, os.O_WRONLY) if options.done else -1
    turns = []
    time.monotonic = own_time = OwnTime()  # type: ignore[assignment]
    clock = time.process_time if options.cpu else time.perf_counter
    for turn in range(options.turns):
        if go >= 0:
            own_time.wait(go)
        times = []
        steps = options.turn_steps if turn or options.first_turn is None else options.first_turn
        for _ in range(steps):
            started = clock()
            rows = data[torch.randint(0, len(data), (options.batch,))]
            logits = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            times.append(clock() - started)
        turns.append(times)
        if done >= 0:
            os.write(done, b".")
    with open(options.out, "w") as file:
        json.dump(turns, file)


if __name__ == "__main__":
    main()
