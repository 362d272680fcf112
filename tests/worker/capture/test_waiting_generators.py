"""Generators that only a loop holds, found where a loop may hold one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from supervisor.worker.capture.waiting_generators import UNKNOWN, differing, waiting_values


def minibatches(values: torch.Tensor) -> Iterator[torch.Tensor]:
    advantages = values - values.mean()
    rows = torch.randperm(len(values))
    for row in rows:
        yield values[row]
    del advantages


def found_in_loop(values: torch.Tensor, frames: dict[str, Any]) -> list[dict[str, str]]:
    return [waiting_values({"main": frames}) for _ in minibatches(values)]


def test_real_tensors_that_no_variable_leads_to_are_found() -> None:
    values = torch.arange(3.0)

    found = found_in_loop(values, {"values": values})

    assert [list(one) for one in found] == [["minibatches.advantages"]] * 3
    assert found[0] == found[2]


def test_what_a_variable_leads_to_is_left_to_the_census() -> None:
    values = torch.arange(3.0)
    batches = minibatches(values)

    found = [waiting_values({"main": {"batches": batches, "v": values}}) for _ in iter(batches)]

    assert found == [{}] * 3


def test_another_value_is_named_and_one_on_a_device_is_not_compared() -> None:
    saved = {"a.x": "1", "a.y": "2", "a.z": UNKNOWN}

    problems = differing(saved, {"a.x": "1", "a.y": "3", "a.z": UNKNOWN})

    assert problems == [
        "a.y is not as it was, and only a loop holds it",
        "a.z is not as it was, and only a loop holds it",
    ]
    assert differing(saved, {"a.x": "1"}) != []
