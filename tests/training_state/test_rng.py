from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from supervisor.training_state.rng import RngState


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.randn()), torch.rand(()).item()]


def test_all_generators_repeat_after_a_restore_from_disk(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a second value waiting, in Python and in NumPy
    np.random.randn()
    torch.save(RngState.capture(), tmp_path / "rng.pt")
    drawn = draw()
    draw()

    RngState.restore(torch.load(tmp_path / "rng.pt", weights_only=True))

    assert draw() == drawn


def test_capturing_draws_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    RngState.capture()

    assert torch.equal(torch.rand(2), expected)
