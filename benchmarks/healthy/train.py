"""One of the healthy trainings as a script: ``train.py KIND [SEED] [STEPS]``.

It knows nothing of a supervisor, and leaves a digest of its last weights in ``weights.txt``.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch

from benchmarks.healthy import KINDS
from benchmarks.healthy.base import parameters


def main(kind: str, seed: int = 0, steps: int = 450) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    digest = hashlib.sha256()
    for update in KINDS[kind](steps):
        optimizer = update.optimizer
    for tensor in parameters(optimizer):
        digest.update(tensor.detach().numpy().tobytes())
    Path("weights.txt").write_text(f"{digest.hexdigest()} {float(update.loss)!r}\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
