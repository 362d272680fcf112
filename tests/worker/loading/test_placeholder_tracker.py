"""What may be done with a batch that stands for another, and what may not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from supervisor.training_state.held_values import storages
from supervisor.worker.core.call_state import CallState
from supervisor.worker.loading.placeholder_tracker import PlaceholderTracker

Use = Callable[[torch.Tensor], object]


class Leak(Exception):
    """Stands for the start over."""


@pytest.fixture
def call_state() -> CallState:
    return CallState()


@pytest.fixture
def guard(call_state: CallState) -> Iterator[PlaceholderTracker]:
    def on_leak(why: str) -> None:
        raise Leak(why)

    guard = PlaceholderTracker(call_state, on_leak)
    guard.start()
    yield guard
    guard.stop()


def _batch(guard: PlaceholderTracker, call_state: CallState) -> torch.Tensor:
    with call_state.region():
        batch = torch.arange(600.0).reshape(3, 200) - 300.0
        guard.hand_out([batch])
    return batch


@pytest.mark.parametrize(
    "use",
    [
        lambda x: (x * 2 + 1).sin().mean(),
        lambda x: x[:2].permute(1, 0).reshape(-1)[None],
        lambda x: x[torch.tensor([0, 2])],
        lambda x: torch.where(x > 0, x, torch.zeros(())),
        lambda x: torch.cat([x, torch.ones(3, 2)], 1).max(dim=1),
        lambda x: nn.functional.cross_entropy(x, torch.zeros(3, dtype=torch.long)),
        lambda x: x.to(torch.float64).clone().add_(1.0),
        lambda x: nn.functional.dropout(x, 0.5),
        lambda x: list(x),
        lambda x: torch.randperm(300).tolist(),
        lambda x: torch.nonzero(torch.ones(4)),
    ],
)
def test_values_that_stay_in_tensors_are_free(
    guard: PlaceholderTracker, call_state: CallState, use: Use
) -> None:
    use(_batch(guard, call_state))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[x > 0],
        lambda x: (x * 2).nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: (x + 1).numpy(),
        lambda x: x.tolist(),
        lambda x: torch.arange(0, x.sum()),
        lambda x: x.add_(1.0),
        lambda x: x[0].zero_(),
        lambda x: pickle.dumps(x * 2),
        lambda x: copy.deepcopy(x),
        lambda x: torch.multinomial(x.abs(), 1),
        lambda x: repr(x),
    ],
)
def test_a_value_that_would_come_out_is_told(
    guard: PlaceholderTracker, call_state: CallState, use: Use
) -> None:
    batch = _batch(guard, call_state)

    with pytest.raises(Leak):
        use(batch)


def test_a_replay_that_is_not_the_recorded_run_is_told(guard: PlaceholderTracker) -> None:
    with pytest.raises(Leak):
        guard.disproved("step 3: other samples")


def test_what_happens_inside_a_region_is_free(
    guard: PlaceholderTracker, call_state: CallState
) -> None:
    batch = _batch(guard, call_state)

    with call_state.region():
        assert len(batch[batch > 0]) == 299


def test_what_is_left_over_at_the_target_is_found(
    guard: PlaceholderTracker, call_state: CallState
) -> None:
    total = torch.zeros(200)
    for _ in range(3):
        total += _batch(guard, call_state).sum(0)

    with call_state.region():
        assert guard.left_over(())
        assert not guard.left_over(storages([total]))


def test_nothing_is_left_over_when_all_is_gone(
    guard: PlaceholderTracker, call_state: CallState
) -> None:
    for _ in range(3):
        _batch(guard, call_state).exp().sum()

    assert not guard.left_over(())


def test_everything_is_as_before_at_the_end(
    guard: PlaceholderTracker, call_state: CallState
) -> None:
    before = torch.Tensor.numpy
    batch = _batch(guard, call_state)

    guard.stop()

    assert torch.Tensor.numpy is not before
    assert len(batch[batch > 0]) == 299
    assert batch.numpy().shape == (3, 200)


def test_it_can_be_ended_within_inference_mode_and_goes_with_it() -> None:
    guard = PlaceholderTracker(CallState(), lambda why: None)
    guard.start()
    with torch.inference_mode():
        with torch.inference_mode():
            guard.stop()
        inside = torch.ones(2) + 1
    outside = torch.ones(2) + 1

    assert inside.is_inference()
    assert not outside.is_inference()
    assert _get_current_dispatch_mode_stack() == []
