"""Tensors that nobody trains: what changes them unseen is a fault, what a script does is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.flipped_training import flip_bit
from supervisor.settings import SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor, heal
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.corruption.still_weights import STILL
from supervisor.worker.corruption.update_watch import UpdateWatch


class Frozen:
    """A frozen layer with a table beside one that is trained; a look after each `window`."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(16, 16, dtype=dtype), nn.Linear(16, 4, dtype=dtype)
        self.layer.requires_grad_(False)
        self.layer.register_buffer("table", torch.rand(32, dtype=dtype))
        self.model = nn.Sequential(self.layer, nn.BatchNorm1d(16, dtype=dtype), self.head)
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)
        registry = Registry()
        registry.add_model(self.model)
        registry.add_optimizer(self.optimizer)
        self.state, self.ring = TrainingState(registry), SnapshotRing(SnapshotSettings())
        self.check = StateCheck(registry, UpdateWatch(registry))
        self.step = 0
        self.keep()

    def keep(self) -> None:
        state = self.state.capture(for_rollback=True)
        self.ring.take(self.step, state, {})
        self.check.checked(state)

    def window(self, change: Callable[[], object] = lambda: None) -> list[CorruptedTensor]:
        change()
        self.step += 10
        newest = self.ring.newest()
        assert newest is not None
        found = self.check.compare(newest, self.step)
        if found:
            heal(found)
        self.keep()
        return found

    def still(self) -> None:
        for _ in range(STILL):
            assert self.window() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("part", ["weight", "table"])
def test_a_flipped_bit_is_found_and_put_back(part: str, dtype: torch.dtype) -> None:
    highest = 8 * dtype.itemsize - 2
    for bit in (highest, highest - 2, 3):
        frozen = Frozen(dtype)
        tensor = getattr(frozen.layer, part)
        before = tensor.clone()
        frozen.still()

        (found,) = frozen.window(lambda t=tensor, b=bit: flip_bit(t, 5, b))

        assert found.rule == "still"
        assert found.places == (5,)
        assert "nothing has written to it" in found.sentence()
        assert torch.equal(tensor, before)


def _write(tensor: torch.Tensor) -> None:
    tensor.data.mul_(1.5)  # torch does not count it


def _set_few(tensor: torch.Tensor) -> None:
    tensor.data.view(-1)[:3] = 0.123


def _counted(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.view(-1)[5] *= 1e6


@pytest.mark.parametrize("change", [_write, _set_few, _counted])
def test_what_a_script_writes_is_no_fault(change: Callable[[torch.Tensor], None]) -> None:
    frozen = Frozen()
    frozen.still()

    assert frozen.window(lambda: change(frozen.layer.weight)) == []
    assert frozen.window() == []


def test_what_changes_unseen_in_every_window_is_the_scripts_way() -> None:
    frozen = Frozen()
    for bit in (23, 24, 25, 26, 27):
        assert frozen.window(lambda b=bit: flip_bit(frozen.layer.table, 5, b)) == []
