"""Gradients of single samples, which hooks write to parameters, are there in a fast-forward."""

from __future__ import annotations

import torch
from torch import nn

from supervisor.worker.replay.gradient_notes import GradientNotes


def noted() -> tuple[nn.Linear, torch.optim.Optimizer, GradientNotes]:
    model = nn.Linear(2, 1)
    model.weight.owner = "me"  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    notes = GradientNotes()
    before = notes.before([optimizer])
    model.weight.grad_sample = torch.ones(8, 1, 2)  # type: ignore[assignment]
    model.bias.grad_sample = [torch.ones(8, 1)]  # type: ignore[assignment]
    notes.executed([optimizer], before)
    return model, optimizer, notes


def test_what_an_executed_backward_wrote_is_given_again_as_zeros() -> None:
    model, optimizer, notes = noted()
    for parameter in model.parameters():
        parameter.grad_sample = None  # type: ignore[attr-defined]

    notes.give([optimizer])

    assert torch.equal(model.weight.grad_sample, torch.zeros(8, 1, 2))  # type: ignore[arg-type]
    assert [len(one) for one in model.bias.grad_sample] == [8]  # type: ignore[union-attr]
    assert model.weight.owner == "me"


def test_what_is_still_there_is_left_alone() -> None:
    model, optimizer, notes = noted()

    notes.give([optimizer])

    assert torch.equal(model.weight.grad_sample, torch.ones(8, 1, 2))  # type: ignore[arg-type]
