"""Which graphs are still to be gone through, and what a backward reaches across a boundary."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from supervisor.worker.core.graphs_across import (
    MOST_BOUNDARIES,
    UNKNOWN_FOR,
    GraphsAcross,
    has_living_graph,
)

model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def test_a_graph_lives_until_a_backward_has_gone_through_it() -> None:
    out = model(torch.ones(2, 4))
    loss = (out * 2).pow(2).sum() + 1

    assert has_living_graph(out)
    assert has_living_graph(loss)

    loss.backward()

    assert not has_living_graph(out)
    assert not has_living_graph(loss)
    assert not has_living_graph(torch.ones(2))


def test_a_function_of_the_script_has_a_graph_too() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            return 2 * ctx.saved_tensors[0] * gradient

    out = Square.apply(torch.ones(2, requires_grad=True))

    assert has_living_graph(out)
    out.sum().backward()
    assert not has_living_graph(out)


@pytest.mark.parametrize("boundaries", [0, 1])
def test_a_backward_across_a_boundary_is_seen(boundaries: int) -> None:
    graphs = GraphsAcross()
    out = model(torch.ones(2, 4))
    graphs.watch((out, None))
    graphs.boundaries += boundaries

    out.sum().backward()

    assert graphs.seen is bool(boundaries)


def test_lists_of_living_graphs_are_told_and_single_variables_once_it_is_known() -> None:
    graphs = GraphsAcross()
    held = {"main.row[0]": model(torch.ones(2, 4)), "main.out": model(torch.ones(2, 4))}

    assert graphs.kept(held, 10) == ["main.row[0]"]
    assert graphs.kept(held, UNKNOWN_FOR + 1) == []

    graphs.seen = True
    assert graphs.kept(held, UNKNOWN_FOR + 1) == ["main.row[0]", "main.out"]


def test_a_checkpoint_waits_for_a_boundary_without_them_and_not_twice_in_vain() -> None:
    graphs = GraphsAcross()
    graphs.seen = True
    held = {"main.out": model(torch.ones(2, 4))}

    assert graphs.puts_off(held, 1)
    assert not graphs.puts_off({}, 2)
    assert graphs.puts_off(held, 3)
    graphs.boundaries += MOST_BOUNDARIES
    assert not graphs.puts_off(held, 4)
    assert not graphs.puts_off(held, 5)


def test_what_a_replay_has_made_is_not_told() -> None:
    graphs = GraphsAcross()
    held = {"main.losses[0]": model(torch.ones(2, 4)).sum()}

    graphs.arrived(seen=False)

    assert graphs.kept(held, 10) == []
    assert graphs.kept({"main.losses[1]": model(torch.ones(2, 4)).sum()}, 10) == ["main.losses[1]"]
