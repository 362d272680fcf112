"""A sample that is another one when it is loaded again, while all others are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.samples.changed_samples import ChangedSamples

SIZE, BATCH = 128, 16


class Data(Dataset[torch.Tensor]):
    """A data set in memory."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rows = torch.randn(SIZE, 4).bfloat16()

    def __len__(self) -> int:
        return SIZE

    def damage(self, sample: int | slice) -> None:
        """Changes its memory; torch, which counts what it writes, does not know."""
        self.rows.view(torch.int16).numpy()[sample] += 1


class Loads:
    """Epochs over it, as a loader hands them out."""

    def __init__(self) -> None:
        self.data = Data()
        self.found: list[int] = []
        self.interception = InterceptionState()
        self.changed = ChangedSamples(
            self.interception, lambda data, sample, equal: self.found.append(sample)
        )

    def epochs(self, number: int, augment: Callable[[torch.Tensor], Any] = lambda x: x) -> None:
        for _ in range(number):
            order = torch.randperm(SIZE).tolist()
            for begin in range(0, SIZE, BATCH):
                indices = order[begin : begin + BATCH]
                rows = augment(self.data.rows[indices])
                batch = {"x": rows, "y": torch.tensor(indices)}
                self.changed.was_handed_out(self.data, indices, batch)


def test_one_sample_that_changed_is_named_once() -> None:
    loads = Loads()
    loads.epochs(3)
    loads.data.damage(12)

    loads.epochs(4)

    assert loads.found == [12]


def test_a_sample_that_the_script_changes_is_its_own_affair() -> None:
    loads = Loads()
    loads.epochs(3)
    loads.data.rows[12] += 1

    loads.epochs(4)

    assert loads.found == []


@pytest.mark.parametrize(
    "augment", [lambda x: x + torch.randn(()), lambda x: x * (torch.rand(len(x), 1) > 0.1)]
)
def test_augmentation_is_no_change(augment: Callable[[torch.Tensor], Any]) -> None:
    loads = Loads()

    loads.epochs(5, augment)

    assert loads.found == []


def test_data_that_are_replaced_on_purpose_are_no_change() -> None:
    loads = Loads()
    loads.epochs(3)
    loads.data.damage(slice(None, None, 3))

    loads.epochs(4)

    assert loads.found == []


def test_placeholders_of_a_replay_are_not_looked_at() -> None:
    loads = Loads()
    loads.epochs(3)
    loads.interception.replaying = True
    loads.epochs(1, lambda x: x * 0)
    loads.interception.replaying = False

    loads.epochs(3)

    assert loads.found == []


def test_what_is_no_ordinary_data_set_ends_the_watch_and_nothing_else() -> None:
    loads = Loads()

    loads.changed.was_handed_out(object(), [1], None)
    loads.changed.was_handed_out(loads.data, [[1]], None)
    loads.epochs(1)

    assert loads.found == []
