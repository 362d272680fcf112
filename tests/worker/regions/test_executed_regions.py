"""Which regions of a replay really happen."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

from supervisor.worker.regions.executed_regions import ExecutedRegions, no_norm


def test_the_first_forward_of_each_mode_is_executed_and_all_of_the_first_step() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)

    found = [regions.executes_forward(model) for _ in range(3)]
    regions.step_ended()
    found += [regions.executes_forward(model) for _ in range(2)]
    model.eval()
    with torch.no_grad():
        found += [regions.executes_forward(model) for _ in range(2)]

    assert found == [True] * 3 + [False] * 2 + [True, False]


def test_a_forward_is_executed_anew_when_the_script_has_added_a_hook() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)
    model.register_full_backward_hook(lambda module, inner, outer: None)
    regions.executes_forward(model)
    regions.run(lambda: model(torch.ones(1, 2, requires_grad=True)))  # torch adds hooks of its own
    regions.step_ended()

    assert not regions.executes_forward(model)
    model.register_forward_hook(lambda module, given, output: None)
    assert regions.executes_forward(model)


def test_a_model_that_the_script_drops_is_not_kept() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)
    known = weakref.ref(model)
    regions.executes_forward(model)
    regions.run(functools.partial(model, torch.ones(1, 2)))
    regions.forward_ended()

    del model

    assert known() is None


def test_gradients_of_a_later_backward_are_thrown_away_and_its_hooks_called() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    regions.step_ended()
    seen: list[float] = []
    model.weight.register_hook(lambda gradient: seen.append(gradient.sum().item()))
    assert regions.executes_forward(model)
    loss = model(torch.ones(1, 2)).sum()

    for _ in range(2):  # the second one cannot be: the graph is gone
        regions.backward(loss, lambda root: root.backward(), [optimizer])

    assert seen == [2.0]
    assert model.weight.grad is None


def test_the_first_update_makes_the_optimizers_state_and_no_other_weights() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()

    put_back = regions.begin_update(optimizer)
    optimizer.step()
    assert put_back is not None
    put_back()

    assert model.weight in optimizer.state
    assert torch.equal(model.weight, before)
    assert regions.begin_update(optimizer) is None


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def executed_steps(regions: ExecutedRegions, model: nn.Module, steps: int) -> list[bool]:
    found = []
    for _ in range(steps):
        found.append(regions.executes_forward(model))
        regions.step_ended()
    return found


@pytest.mark.usefixtures("alone")
def test_the_forward_at_which_ranks_arrange_their_buckets_is_executed() -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))

    assert executed_steps(ExecutedRegions(), model, 4) == [True, True, False, False]


@pytest.mark.usefixtures("alone")
def test_so_it_is_where_the_wrapper_stays_in_evaluation_mode() -> None:
    model = DistributedDataParallel(nn.Linear(2, 1)).eval()
    model.module.train()
    regions = ExecutedRegions()
    with torch.inference_mode():  # before the first step, as Lightning does
        assert regions.executes_forward(model)

    assert executed_steps(regions, model, 4) == [True, True, False, False]


@pytest.mark.usefixtures("alone")
def test_a_static_graph_arranges_them_one_step_later_and_all_of_that_step_is_executed() -> None:
    regions, model = ExecutedRegions(), DistributedDataParallel(nn.Linear(2, 1), static_graph=True)
    other = nn.Linear(1, 1)
    assert regions.executes_forward(model)
    assert regions.executes_forward(other)
    regions.step_ended()

    assert regions.is_first_step
    assert regions.executes_forward(model)
    assert regions.executes_forward(other)
    regions.step_ended()

    assert not regions.is_first_step
    assert executed_steps(regions, model, 2) == [True, False]
    assert not regions.executes_forward(other)


@pytest.mark.usefixtures("alone")
def test_buckets_of_steps_without_averaging_are_arranged_behind_the_first_one_with_it() -> None:
    regions, model = ExecutedRegions(), DistributedDataParallel(nn.Linear(2, 1))
    with model.no_sync():
        assert executed_steps(regions, model, 2) == [True, False]

    assert executed_steps(regions, model, 3) == [True, True, False]


@pytest.mark.usefixtures("alone")
def test_so_they_are_where_a_part_of_a_known_module_is_wrapped() -> None:
    regions, model = ExecutedRegions(), nn.Sequential(nn.Linear(2, 1))
    assert executed_steps(regions, model, 2) == [True, False]

    model[0] = DistributedDataParallel(model[0])

    assert executed_steps(regions, model, 3) == [True, True, False]


@pytest.mark.usefixtures("alone")
def test_so_they_are_where_a_known_module_calls_a_wrapper_that_it_did_not_call_before() -> None:
    regions, model = ExecutedRegions(), nn.Sequential(DistributedDataParallel(nn.Linear(2, 1)))
    assert executed_steps(regions, model, 4) == [True, True, False, False]

    found = [regions.executes_forward(model, anew=True)]
    regions.step_ended()
    found.append(regions.executes_forward(model, anew=True))
    regions.step_ended()

    assert found + executed_steps(regions, model, 1) == [True, True, False]


class Held(nn.Module):
    """Calls a wrapper that it has not registered."""

    def __init__(self, wrapped: DistributedDataParallel) -> None:
        super().__init__()
        self.held = [wrapped]

    def forward(self, x: torch.Tensor) -> Any:
        return self.held[0](x)


def wrapped() -> tuple[nn.Module, Any]:
    model = DistributedDataParallel(nn.Linear(2, 1))
    return model, model


def held() -> tuple[nn.Module, Any]:
    model = DistributedDataParallel(nn.Linear(2, 1))
    return Held(model), model


def replicated() -> tuple[nn.Module, Any]:
    model = replicate(nn.Linear(2, 1))
    return model, model


@contextlib.contextmanager
def without_average(model: Any) -> Iterator[None]:
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    else:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("made", [wrapped, held, replicated])
def test_a_forward_that_only_shows_its_form_has_no_later_backward_average(
    made: Callable[[], tuple[nn.Module, Any]],
) -> None:
    regions, (model, averaging) = ExecutedRegions(), made()
    averaged: list[int] = []

    def average(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        averaged.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    averaging.register_comm_hook(None, lambda state, bucket: average(bucket))
    found = []
    for _ in range(3):
        found.append(regions.executes_forward(model))
        if found[-1]:
            regions.run(lambda: model(torch.zeros(1, 2))).sum().backward()
        regions.step_ended()
    assert found == [True, True, False]
    del averaged[:]
    regions.run(lambda: model(torch.zeros(3, 2)))

    with without_average(averaging):
        model(torch.zeros(1, 2)).sum().backward()

    assert averaged == []


@pytest.mark.usefixtures("alone")
def test_buffers_are_sent_at_the_next_forward_where_the_last_one_was_to_average() -> None:
    regions, model = ExecutedRegions(), DistributedDataParallel(nn.BatchNorm1d(1))
    told = []
    for _ in range(3):  # the last ones are not executed
        with model.no_sync():
            regions.executes_forward(model)
            regions.forward_ended()
        told.append(model.require_forward_param_sync)
        regions.executes_forward(model)
        regions.forward_ended()
        told.append(model.require_forward_param_sync)
        regions.step_ended()

    assert told == [False, True] * 3


def test_of_plain_tensors_it_is_one() -> None:
    assert torch.equal(no_norm([torch.ones(3)]), torch.zeros(()))
    assert torch.equal(no_norm([]), torch.zeros(()))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_of_shards_it_is_one_that_has_a_full_tensor() -> None:
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,))
        norm = no_norm([distribute_tensor(torch.ones(4), mesh)])

        assert isinstance(norm, DTensor)
        assert torch.equal(norm.full_tensor(), torch.zeros(()))
        assert norm.item() == 0.0
    finally:
        dist.destroy_process_group()
