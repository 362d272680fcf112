"""What a live run sees of its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.detectors.statistics.changes import SCALE, SHIFT
from supervisor.worker.step_record.input_watch import COLUMNS, ROWS, InputWatch, sample_of

Make = Callable[[], torch.Tensor]


def _images() -> torch.Tensor:
    return torch.randn(32, 3, 8, 8)


def _texts() -> torch.Tensor:
    return torch.randint(0, 50, (400,))[torch.randint(0, 380, (16,))[:, None] + torch.arange(16)]


def _watched(
    make: Make, other: Make, steps: int = 3, **given: torch.Tensor
) -> list[dict[str, float]]:
    """What is observed from the first batch of `other` on, whose losses are higher."""
    torch.manual_seed(0)
    watch, found = InputWatch(), []
    for step in range(63):
        watch.saw((make() if step < 60 else other(),), {})
        found.append(watch.judge(1.0 if step < 60 else 2.0, {}))
    assert found[:60] == [{}] * 60
    return found[60:]


@pytest.mark.parametrize("make", [_images, _texts])
def test_the_same_data_are_nothing_to_note(make: Make) -> None:
    text = torch.randint(0, 50, (400,))
    starts = torch.arange(16)

    def read() -> torch.Tensor:
        return text[torch.randint(0, 380, (16,))[:, None] + starts]

    same = read if make is _texts else make

    assert _watched(same, same) == [{}] * 3


def test_samples_that_come_again_and_again_are_nothing_to_note() -> None:
    few = torch.randn(96, 8)

    def some() -> torch.Tensor:
        return few[torch.randint(96, (32,))]

    assert _watched(lambda: few, lambda: few) == [{}] * 3
    assert _watched(some, some) == [{}] * 3


def test_other_images_are_noted_twice_and_then_usual() -> None:
    found = _watched(_images, lambda: 0.8 * torch.randn(32, 3, 8, 8) + 1.5)

    assert [SHIFT in one for one in found] == [True, True, False]
    assert found[0][SHIFT] >= 1.0
    assert 0.5 < found[0][SCALE] < 2.0


def test_images_that_are_not_normalised_have_another_spread() -> None:
    found = _watched(_images, lambda: 255.0 * torch.randn(32, 3, 8, 8))

    assert found[0][SCALE] == pytest.approx(255.0, rel=0.2)


def test_a_text_that_was_never_read_is_other_data() -> None:
    known, fresh = torch.randint(0, 50, (200,)), torch.randint(0, 50, (9_000,))

    def read(text: torch.Tensor) -> torch.Tensor:
        starts = torch.randint(0, len(text) - 16, (16,))
        return text[starts[:, None] + torch.arange(16)]

    found = _watched(lambda: read(known), lambda: read(fresh))

    assert [SHIFT in one for one in found] == [True, True, False]


def test_only_the_input_counts_and_evaluations_do_not() -> None:
    watch = InputWatch()
    with torch.no_grad():
        watch.saw((torch.full((4, 4), 1e9),), {})
    for step in range(40):
        labels = torch.zeros(8, dtype=torch.long) + (step > 30)
        watch.saw((), {"labels": labels, "images": torch.randn(8, 4)})
        watch.saw((torch.full((4, 4), 1e9),), {})  # another model's
        assert watch.judge(1.0 + (step > 30), {}) == {}


def test_what_cannot_be_looked_at_ends_the_watch() -> None:
    watch = InputWatch()
    for step in range(40):
        watch.saw((torch.randn(4, 4, device="meta"),), {})
        assert watch.judge(float(step), {}) == {}


def test_a_reward_that_falls_is_looked_into_like_a_loss() -> None:
    torch.manual_seed(0)
    watch, found = InputWatch(), []
    for step in range(42):
        watch.saw((torch.randn(32, 8) + (3.0 if step >= 40 else 0.0),), {})
        found.append(watch.judge(0.1, {"reward": 0.2 if step >= 40 else 0.9}))

    assert [SHIFT in one for one in found[38:]] == [False, False, True, True]


class _Counts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


class _CountsFunctions(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [_Counts, _CountsFunctions])
def test_a_script_that_looks_at_each_operation_sees_none_of_ours(mode: Any) -> None:
    watch, images = InputWatch(), _images()

    with mode() as counted:
        watch.saw((images,), {})

    assert counted.seen == 0


def test_a_watch_that_fails_is_over_and_says_so() -> None:
    told: list[str] = []
    watch = InputWatch(tell=told.append)

    for step in range(40):
        watch.saw((torch.empty(4, 3, device="meta"),), {})
        assert watch.judge(1.0 + step, {}) == {}

    assert len(told) == 1
    assert told[0].startswith("batches are not looked at any more: ")


def test_longer_samples_are_other_data_where_all_had_one_length() -> None:
    found = _watched(lambda: torch.rand(32, 4, 5), lambda: torch.rand(32, 8, 5))

    assert [SHIFT in noted for noted in found] == [True, True, False]
    assert 0.5 < found[0][SCALE] < 2.0


def test_longer_samples_are_nothing_where_lengths_vary() -> None:
    lengths = iter(range(4, 100))

    assert (
        _watched(lambda: torch.rand(32, next(lengths), 5), lambda: torch.rand(32, 200, 5))
        == [{}] * 3
    )


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
