"""Replicas that were alike and are not any more: which rank is the odd one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from supervisor.errors import CheckpointDamaged
from supervisor.training_state.replicas import (
    Split,
    diverged,
    parameters_alike,
    shared_paths,
    splits,
    tensor_digests,
    with_replicated,
    without_replicated,
)
from supervisor.training_state.state import digest

WEIGHT, BIAS, MOMENT = "models.m.module.weight", "models.m.module.bias", "optimizers.o.state.0.m"
BUFFER = "models.m.module.running_mean"
ALIKE = frozenset({WEIGHT, BIAS})
FIRST = {WEIGHT: "1", BIAS: "2", MOMENT: "3", BUFFER: "4"}
ALL = frozenset(FIRST)


def test_what_was_alike_at_the_last_checkpoint_and_is_not_now_is_told() -> None:
    own = {**FIRST, WEIGHT: "flipped", MOMENT: "flipped too"}

    assert diverged(ALL, FIRST, own, ALIKE) == {WEIGHT: "flipped", MOMENT: "flipped too"}
    assert diverged(ALL, FIRST, FIRST, ALIKE) == {}


def test_ranks_that_go_their_own_ways_are_no_corruption() -> None:
    all_differ = dict.fromkeys(FIRST, "other")

    assert diverged(ALL, FIRST, all_differ, ALIKE) == {}
    assert diverged(ALL, FIRST, {**FIRST, BUFFER: "of this rank"}, ALIKE) == {}
    assert diverged(ALL, FIRST, {**FIRST, MOMENT: "sharded"}, ALIKE) == {}
    assert diverged(ALL, FIRST, {**FIRST, WEIGHT: "no DDP"}, frozenset()) == {}
    assert diverged({BIAS}, FIRST, {**FIRST, WEIGHT: "never alike"}, ALIKE) == {}


def test_a_tensor_that_one_rank_lacks_is_not_compared() -> None:
    assert shared_paths(FIRST, {WEIGHT: "1", BIAS: "other"}) == {WEIGHT}
    assert diverged(ALL, {}, FIRST, ALIKE) == {}


def test_most_ranks_are_right() -> None:
    flipped = {WEIGHT: "a"}

    assert splits([(1, {}), (2, flipped)], 3) == [Split(WEIGHT, (2,))]
    assert splits([(1, flipped), (2, flipped)], 3) == [Split(WEIGHT, (0,))]
    assert splits([(1, flipped), (2, {WEIGHT: "b"})], 3) == [Split(WEIGHT, ())]
    assert splits([(1, flipped)], 2) == [Split(WEIGHT, ())]
    assert splits([(1, {}), (2, {})], 3) == []


def test_only_what_ddp_keeps_alike_counts() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        both = nn.ModuleDict({"ddp": wrapped, "own": nn.Linear(2, 2)})

        alone = parameters_alike({"m": wrapped})
        inside = parameters_alike({"m": both})
    finally:
        dist.destroy_process_group()

    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert alone == {f"models.m.module.{name}" for name in names}
    assert inside == {f"models.m.ddp.module.{name}" for name in names}
    assert parameters_alike({"m": nn.Linear(2, 2)}) == frozenset()


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
