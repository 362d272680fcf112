"""One of the healthy trainings as a script: ``train.py KIND [SEED] [RESULT]``.

It knows nothing of a supervisor, and leaves a digest of its last weights in the file RESULT,
``weights.txt`` if not given.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch

from benchmarks.healthy import KINDS
from benchmarks.healthy.base import parameters

STEPS = 450


def main(kind: str, seed: str = "0", result: str = "weights.txt") -> None:
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    digest = hashlib.sha256()
    for update in KINDS[kind](STEPS):
        optimizer = update.optimizer
    for tensor in parameters(optimizer):
        digest.update(tensor.detach().numpy().tobytes())
    Path(result).write_text(f"{digest.hexdigest()} {float(update.loss)!r}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
