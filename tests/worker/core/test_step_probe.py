"""What is gathered of a step becomes its record, and nothing of the next."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from supervisor.worker.core.step_probe import StepProbe, tensors_in
from supervisor.worker.step_record.input_watch import InputWatch


def test_a_record_that_waits_does_not_get_what_the_next_step_observes() -> None:
    probe = StepProbe()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    waiting = probe.record(0, 1.0, optimizer)
    probe.observed.update({"kl": 0.5})
    following = probe.record(1, 2.0, optimizer)

    assert waiting.observed == {}
    assert following.observed == {"kl": 0.5}


def test_the_rate_of_an_optimizer_without_one_is_not_known() -> None:
    weight = torch.zeros(1, requires_grad=True)

    for group in ({}, {"lr": None}):
        assert math.isnan(StepProbe().record(0, 1.0, torch.optim.Optimizer([weight], group)).lr)


class _Augments(Mapping[str, torch.Tensor]):
    """Makes what it gives at each look, as a batch does that is augmented late."""

    def __init__(self) -> None:
        self.looks = 0

    def __getitem__(self, key: str) -> torch.Tensor:
        self.looks += 1
        return torch.zeros(2)

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


class _Loads(list[torch.Tensor]):
    looks = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.looks += 1
        return super().__iter__()


def test_no_container_of_the_script_is_asked_for_what_it_makes_at_each_look() -> None:
    """It would draw other random numbers than without us."""
    mapping, listed, probe = _Augments(), _Loads([torch.zeros(3)]), StepProbe()

    probe.saw_forward((mapping, listed), {"more": mapping})
    probe.saw_batch([mapping, listed])
    InputWatch().saw((mapping, listed), {"more": mapping})

    assert (mapping.looks, listed.looks) == (0, 0)
    assert probe.batch_size == 3


def test_a_batch_is_told_from_others_by_its_first_numbers_however_they_lie_in_memory() -> None:
    def signature(batch: torch.Tensor) -> int:
        probe = StepProbe()
        probe.saw_batch([batch])
        return probe.signature

    numbers = torch.arange(40.0).reshape(5, 8)
    alike = [
        *(numbers.clone(), numbers.t().contiguous().t(), torch.nn.Parameter(numbers)),
        *(torch.cat([numbers, numbers])[5:], numbers.clone().requires_grad_()),
    ]

    assert {signature(batch) for batch in alike} == {signature(numbers)}
    assert signature(numbers + 1) != signature(numbers)
    assert signature(numbers[:1]) != signature(numbers)
    assert signature(torch.zeros(0)) == signature(torch.zeros(3, device="meta")) == 0


def test_plain_containers_are_looked_into() -> None:
    one, two, three, four = (torch.zeros(n) for n in (1, 2, 3, 4))

    assert tensors_in((one, [two]), {"a": (three,), "b": UserDict({"c": four})}) == [
        *(one, two, three, four)
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_has_a_signature(layout: torch.layout) -> None:
    def signature() -> int:
        probe = StepProbe()
        nested = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=layout)
        probe.saw_forward((nested,), {})
        assert probe.batch_size == 2
        return probe.signature

    assert signature() == signature()


def test_a_mode_of_the_script_sees_no_look_at_a_forward() -> None:
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), more: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(more or {}))

    images = torch.zeros(2, 3)
    with Mode():
        StepProbe().saw_forward((images,), {})
        StepProbe().saw_forward((images, images), {})

    assert not seen
