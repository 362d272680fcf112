"""What a data set holds gets the values of the checkpoint; nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from supervisor.worker.loading import loader_skipping as recorded_data
from supervisor.worker.loading.loader_skipping import RecordedData

SAVED = {"main.features": torch.ones(4, 2), "main.seen": np.ones(3), "main.mean": torch.ones(2)}


class WithArray(TensorDataset):
    def __init__(self, features: torch.Tensor) -> None:
        super().__init__(features)
        self.rows = np.zeros(4)


def test_only_tensors_of_the_data_set_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    features, seen, mean = torch.zeros(4, 2), np.zeros(3), torch.zeros(2)
    variables = {"features": features, "seen": seen, "mean": mean}
    monkeypatch.setattr(recorded_data, "user_frames", lambda: {"main": variables})

    assert RecordedData(SAVED).put_into(WithArray(features))

    assert torch.equal(features, torch.ones(4, 2))
    assert not seen.any()
    assert not mean.any()


def test_a_data_set_of_which_nothing_is_saved_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = torch.zeros(4, 2)
    monkeypatch.setattr(recorded_data, "user_frames", lambda: {"main": {"other": features}})

    assert not RecordedData(SAVED).put_into(TensorDataset(features))
