"""What is looked at where most parameters never have a gradient."""

from __future__ import annotations

import torch

from supervisor.worker.step_record.used_parameters import ALIKE, MANY, UsedParameters


def parameters_of(count: int) -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.zeros(1)) for _ in range(count)]


def step(parameters: list[torch.Tensor], *places: int) -> None:
    for parameter in parameters:
        parameter.grad = None
    sum(parameters[place].square().sum() for place in places).backward()  # type: ignore[union-attr]


def test_all_that_have_a_gradient_are_found_in_each_step_while_they_change() -> None:
    used, parameters = UsedParameters(), parameters_of(MANY + 200)

    for number in range(3 * ALIKE):
        places = number % 100, 150 + number % 7
        step(parameters, *places)
        assert [id(p) for p in used.of(parameters)] == [id(parameters[place]) for place in places]


def test_the_others_are_found_within_so_many_steps_once_the_same_ones_were_used() -> None:
    used, parameters = UsedParameters(), parameters_of(MANY + 200)
    for _ in range(2 * ALIKE):
        step(parameters, 3, 5)
        assert [id(p) for p in used.of(parameters)] == [id(parameters[p]) for p in (3, 5)]

    missed = 0
    while True:
        step(parameters, 3, 700)
        if any(p is parameters[700] for p in used.of(parameters)):
            break
        missed += 1

    assert missed <= ALIKE


def test_another_number_of_operations_has_all_looked_at_at_once() -> None:
    used, parameters = UsedParameters(), parameters_of(MANY + 200)
    for _ in range(2 * ALIKE):
        step(parameters, 3, 5)
        used.of(parameters)

    step(parameters, 3, 5, 700)

    assert any(p is parameters[700] for p in used.of(parameters))


def test_of_few_parameters_all_are_looked_at() -> None:
    parameters = parameters_of(3)

    assert UsedParameters().of(parameters) is parameters
