"""Which samples of a batch hold NaN or infinity, and from when they are left out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.progress import Progress
from supervisor.worker.core.step_probe import StepProbe
from supervisor.worker.samples.sample_guard import PoisonedSamples, is_poisoned


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        torch.rand(1)  # as an augmentation does
        return torch.tensor([float(index), math.nan if index in (7, 9) else 0.0]), index


def backwards(samples: list[Any]) -> Any:
    return default_collate(samples[::-1])


def found_in(indices: list[int], collate: Any = default_collate) -> list[int]:
    data, found = Pictures(), []
    samples = PoisonedSamples(
        CallState(),
        Progress(StepProbe(), steps_done=5),
        lambda _, index, step: found.append(index),
    )
    batch = collate([data[index] for index in indices])
    samples.was_handed_out(data, collate, indices, batch)
    samples.explain(batch)
    return found


@pytest.mark.parametrize("collate", [default_collate, backwards])
def test_rows_are_traced_to_their_samples_whatever_their_order(collate: Any) -> None:
    assert found_in([3, 9, 1, 7, 5], collate) == [9, 7]


def test_a_batch_that_is_poisoned_throughout_is_not_blamed_on_its_samples() -> None:
    assert found_in([7, 9]) == []


def test_tracing_draws_no_random_numbers() -> None:
    data = Pictures()
    samples = PoisonedSamples(CallState(), Progress(StepProbe(), steps_done=5), lambda *_: None)
    batch = backwards([data[9], data[1]])
    samples.was_handed_out(data, backwards, [9, 1], batch)
    torch.manual_seed(1)

    samples.explain(batch)

    found = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(found, torch.rand(1))


def test_where_the_newest_batch_is_finite_later_ones_are_looked_at() -> None:
    data, found = Pictures(), []
    samples = PoisonedSamples(
        CallState(),
        Progress(StepProbe(), steps_done=5),
        lambda _, index, step: found.append(index),
    )

    def hand_out(*indices: int) -> Any:
        batch = default_collate([data[index] for index in indices])
        samples.was_handed_out(data, default_collate, list(indices), batch)
        return batch

    hand_out(7, 1)
    samples.explain(hand_out(2, 3))
    assert found == []

    hand_out(4, 9)
    assert found == [9]


def test_an_iterator_leaves_out_what_was_found_at_an_earlier_step() -> None:
    progress = Progress(StepProbe(), steps_done=5)
    samples = PoisonedSamples(CallState(), progress, lambda *_: None)
    samples.known = {("Pictures", "7"): 5, ("Pictures", "9"): 3, ("Other", "1"): 0}

    assert samples.known_to_a_new_iterator("Pictures", 10) == {"9"}
    progress.steps_done = 6
    assert samples.known_to_a_new_iterator("Pictures", 10) == {"7", "9"}
    assert samples.known_to_a_new_iterator("Pictures", 1) == {"7"}
    assert samples.poisoned(Pictures(), [6, 7, 8], frozenset({"7", "8"})) == [7]


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ((torch.ones(2), 3), False),
        ({"x": np.array([1.0, math.inf])}, True),
        ([torch.ones(2, dtype=torch.int64), math.nan], True),
        (torch.tensor([1.0, -math.inf], dtype=torch.bfloat16), True),
    ],
)
def test_samples_of_all_kinds_are_looked_into(sample: Any, expected: bool) -> None:
    assert is_poisoned(sample) is expected
