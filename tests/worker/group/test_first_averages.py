"""When a model that is wrapped for several ranks begins to average."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from supervisor.worker.group.first_averages import FirstAverages


class Wrapper(nn.Module):
    """What is known of torch's."""

    def __init__(self, size: int = 1, *, unused: bool = False) -> None:
        super().__init__()
        self._lazy_init_ran = self._has_rebuilt_buckets = False
        self.find_unused_parameters, self.static_graph = unused, False
        self.process_group = SimpleNamespace(size=lambda: size)


@pytest.fixture
def averages(monkeypatch: pytest.MonkeyPatch) -> FirstAverages:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    return FirstAverages()


def test_a_wrapper_begins_and_then_arranges_its_buckets(averages: FirstAverages) -> None:
    wrapper = Wrapper()
    averages.made(wrapper)

    found = [averages.has_begun()]
    wrapper._lazy_init_ran = True
    found += [averages.has_begun(), averages.has_begun()]
    wrapper._has_rebuilt_buckets = True
    found += [averages.has_begun(), averages.has_begun()]

    assert found == [False, True, False, True, False]


def test_one_that_looks_for_unused_parameters_only_begins(averages: FirstAverages) -> None:
    wrapper = Wrapper(unused=True)
    averages.made(wrapper)
    wrapper._lazy_init_ran = True

    assert averages.has_begun()
    wrapper._has_rebuilt_buckets = True
    assert not averages.has_begun()


def test_one_of_some_ranks_alone_does_not_count_and_none_is_kept(averages: FirstAverages) -> None:
    alone, wrapper = Wrapper(size=2), Wrapper()
    gone = weakref.ref(wrapper)
    for one in (alone, wrapper):
        averages.made(one)
    alone._lazy_init_ran = True

    assert not averages.has_begun()
    del wrapper, one
    assert gone() is None
