"""What is kept of a batch."""

from __future__ import annotations

import pytest
import torch

from supervisor.worker.live.batch_sample import COLUMNS, ROWS, sample_of


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(64, 3, 128, 128).to(memory_format=torch.channels_last),
        torch.zeros(256, 64, 128).transpose(0, 1),
        torch.zeros(64, 3, 128, 128)[..., 1:100],
    ],
    ids=["channels last", "sequence first", "cropped"],
)
def test_no_whole_batch_is_copied(batch: torch.Tensor) -> None:
    with torch.profiler.profile(profile_memory=True) as profile:
        sample = sample_of(batch)

    made = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert sample is not None
    assert sample.sample.shape[0] == ROWS
    assert 16 <= sample.sample.shape[1] <= COLUMNS
    assert made < 100_000


@pytest.mark.parametrize(
    ("shape", "kept"),
    [((), (1, 1)), ((5,), (5, 1)), ((1, 7), (1, 7)), ((70, 100), (32, 32)), ((3, 2, 2), (3, 4))],
)
def test_any_shape_has_rows(shape: tuple[int, ...], kept: tuple[int, int]) -> None:
    sample = sample_of(torch.zeros(shape))

    assert sample is not None
    assert tuple(sample.sample.shape) == kept
