from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """Models that a test makes begin with the same weights each time."""
    torch.manual_seed(0)
