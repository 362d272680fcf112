"""An output of a replay looks as that of the real forward would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from supervisor.worker.regions.cached_outputs import CachedOutputs


class OfBatches(nn.Module):
    """Takes objects of a library as batches, as models of PyG do."""

    def forward(self, batch: Any) -> torch.Tensor:
        values: torch.Tensor = batch.store["x"]
        return values.sum(1)


def test_batches_in_objects_are_told_apart_by_the_shapes_in_them() -> None:
    outputs, model = CachedOutputs(), OfBatches()
    computed = []

    def rows(count: int) -> int:
        batch = SimpleNamespace(store={"x": torch.zeros(count, 2)})

        def call() -> torch.Tensor:
            computed.append(count)
            found: torch.Tensor = model(batch)
            return found

        return len(outputs.output(model, (batch,), {}, call))

    assert [rows(count) for count in (7, 8, 7)] == [7, 8, 7]
    assert computed == [7, 8]


def test_an_argument_that_leads_back_to_itself_has_a_form() -> None:
    outputs, model = CachedOutputs(), OfBatches()
    batch = SimpleNamespace(store={"x": torch.zeros(3, 2)})
    batch.itself = batch

    assert outputs.output(model, (batch,), {}, lambda: model(batch)).shape == (3,)


def test_a_forward_that_a_wrapper_is_to_call_once_is_taken_back_as_by_the_real_one() -> None:
    inner = nn.Linear(2, 1)
    wrapper = nn.Sequential(inner)
    outputs, x = CachedOutputs(), torch.ones(1, 2)
    original = inner.forward

    for _ in range(3):
        earlier = inner.forward

        def once(x: torch.Tensor, earlier: Any = earlier) -> torch.Tensor:
            inner.forward = earlier
            return torch.as_tensor(earlier(x) * 2)

        inner.forward = once  # type: ignore[assignment]
        outputs.output(wrapper, (x,), {}, lambda: wrapper(x))

        assert inner.forward == original


def test_a_forward_that_stays_set_is_left_alone() -> None:
    inner = nn.Linear(2, 1)
    wrapper = nn.Sequential(inner)
    outputs, x = CachedOutputs(), torch.ones(1, 2)
    own = torch.abs
    inner.forward = own  # type: ignore[assignment]

    for _ in range(2):
        outputs.output(wrapper, (x,), {}, lambda: wrapper(x))

        assert inner.forward is own
