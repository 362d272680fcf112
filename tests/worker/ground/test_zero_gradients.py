"""Zeros in the place of gradients, known to be zero until somebody writes to them."""

from __future__ import annotations

import torch

from supervisor.actions.guard import hide_gradients
from supervisor.worker.ground.zero_gradients import ZeroGradients


def _given() -> tuple[ZeroGradients, torch.nn.Parameter, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)
    zeros = ZeroGradients()
    zeros.give([optimizer])
    return zeros, weight, optimizer


def test_zeros_that_nobody_wrote_to_are_given_back_without_being_written_again() -> None:
    zeros, weight, optimizer = _given()
    gradient = weight.grad
    assert gradient is not None
    writes = gradient._version

    hide_gradients(optimizer, zeros.are_still_zero)()

    assert weight.grad is gradient
    assert gradient._version == writes


def test_what_the_script_wrote_into_them_is_zeroed() -> None:
    zeros, weight, optimizer = _given()
    assert weight.grad is not None
    weight.grad.add_(1.0)

    hide_gradients(optimizer, zeros.are_still_zero)()

    assert weight.grad.tolist() == [0.0, 0.0, 0.0]


def test_another_gradient_is_zeroed() -> None:
    zeros, weight, optimizer = _given()
    weight.grad = torch.ones(3)

    hide_gradients(optimizer, zeros.are_still_zero)()

    assert weight.grad.tolist() == [0.0, 0.0, 0.0]
