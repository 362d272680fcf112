"""A transformer that writes down how long its turns took, the device's work included.

    python timed.py --out FILE.json [--width 512] [--layers 6] [--batch 16] [--warm-up 300]
                    [--turns 8] [--turn-steps 100] [--go F --done F] [--each]

With two named pipes it waits for a byte from the one before each turn, and gives one to the other
behind it, so that two trainings can take turns on one device. Its `time.monotonic` stands still
while it waits. `--each` times single steps, with a wait for the device behind each;
`--try-batches 16 64` times steps of other batches, at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.nn import functional


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, usual in (("width", 512), ("layers", 6), ("batch", 16), ("warm-up", 300)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--turn-steps", type=int, default=100)
    parser.add_argument("--try-batches", type=int, nargs="*", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--go")
    parser.add_argument("--done")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    device = options.device
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    width = options.width
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, options.layers)
    model = nn.Sequential(nn.Embedding(512, width), encoder, nn.Linear(width, 512)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    go = os.open(options.go, os.O_RDONLY) if options.go else -1
    done = os.open(options.done, os.O_WRONLY) if options.done else -1
    clock, waited = time.monotonic, [0.0]
    time.monotonic = lambda: clock() - waited[0]

    def train(batch: int) -> None:
        rows = torch.randint(0, 512, (batch, 129), device=device)
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    turns, steps = [], []
    for turn in range(options.turns + 1):
        if go >= 0:
            began = clock()
            os.read(go, 1)
            waited[0] += clock() - began
        began = time.perf_counter()
        for _ in range(options.turn_steps if turn else options.warm_up):
            at = time.perf_counter()
            train(options.batch)
            if options.each:
                wait()
                steps.append(time.perf_counter() - at)
        wait()
        turns.append((time.perf_counter() - began) / max(1, options.turn_steps))
        if done >= 0:
            os.write(done, b".")
    tried = {}
    for batch in options.try_batches:
        for number in range(40):
            if number == 20:
                wait()
                began = time.perf_counter()
            train(batch)
        wait()
        tried[batch] = (time.perf_counter() - began) / 20
    state = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
    found = {
        "turns": turns[1:],
        "tried": tried,
        "steps": steps,
        "state_bytes": sum(one.nbytes for one in state),
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        "reserved_bytes": torch.cuda.max_memory_reserved() if device == "cuda" else 0,
    }
    with open(options.out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
