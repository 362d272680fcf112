"""State that ranks hold alike is written once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from supervisor.errors import CheckpointDamaged
from supervisor.training_state.replicated import (
    tensor_digests,
    with_replicated,
    without_replicated,
)
from supervisor.training_state.state import digest


def state(rank: int) -> dict[str, Any]:
    shared = torch.arange(600.0)
    return {
        "models": {"model_0": {"weight": shared.clone(), "bias": torch.ones(2)}},
        "rng": [torch.full((600,), float(rank)), "text", 3],
        "held": {"a": (shared.clone().to(torch.float64), None)},
    }


def test_a_state_comes_back_whole_from_its_own_part_and_the_first() -> None:
    first, second = state(0), state(1)

    part = without_replicated(second, tensor_digests(first))

    assert not isinstance(part["models"]["model_0"]["weight"], torch.Tensor)
    assert isinstance(part["models"]["model_0"]["bias"], torch.Tensor)  # too small
    assert isinstance(part["rng"][0], torch.Tensor)  # this rank's own
    assert digest(with_replicated(part, first)) == digest(second)


def test_equal_bytes_of_another_type_or_place_are_not_taken_for_the_same() -> None:
    first = {"a": torch.zeros(600), "b": torch.zeros(600)}
    second = {"a": torch.zeros(600, dtype=torch.int32), "b": torch.zeros(300, 2)}

    assert digest(without_replicated(second, tensor_digests(first))) == digest(second)


def test_a_part_whose_first_rank_lacks_a_tensor_is_damaged() -> None:
    first = state(0)
    part = without_replicated(state(1), tensor_digests(first))
    del first["models"]

    with pytest.raises(CheckpointDamaged, match=r"models.model_0.weight: not in the part"):
        with_replicated(part, first)
