"""`StepWatch`: the place of the trouble in a step that a script makes itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from supervisor.numerics.nonfinite.nonfinite_report import NonfiniteReport
from supervisor.numerics.nonfinite.step_watch import StepWatch


class Distance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).pow(2).sum(1, keepdim=True).sqrt()


def watched_step(
    model: nn.Module,
    batch: torch.Tensor,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = torch.mean,
    learning_rate: float = 0.1,
    stops: bool = False,
) -> NonfiniteReport:
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    watch = StepWatch({"model_0": model}, [optimizer])
    watch.prepare()
    handle = model.register_forward_pre_hook(lambda *_: watch.start())
    loss = loss_of(model(batch))
    if not stops:
        watch.before_backward(loss)
        loss.backward()
        watch.after_backward()
        optimizer.step()
    found = watch.end()
    handle.remove()
    assert found is not None
    return found


def test_an_operation_of_the_scripts_own_loss_is_named() -> None:
    found = watched_step(nn.Linear(4, 1), torch.ones(2, 4), lambda out: (out * 0).log().mean())

    assert (found.phase, found.module, found.operation) == ("loss", "(loss)", "log")
    assert found.kind == "log_of_zero"


def test_a_script_that_stops_at_its_bad_loss_is_explained_all_the_same() -> None:
    found = watched_step(
        nn.Linear(4, 1), torch.ones(2, 4), lambda out: out.mean() / torch.zeros(()), stops=True
    )

    assert (found.module, found.kind) == ("(loss)", "division_by_zero")


def test_an_infinite_derivative_is_found_in_the_module_whose_it_is() -> None:
    found = watched_step(nn.Sequential(nn.Identity(), Distance()), torch.zeros(2, 4))

    assert (found.phase, found.module, found.operation) == ("backward", "1", "sqrt")
    assert found.kind == "infinite_derivative"


def test_an_update_that_leaves_the_range_is_the_optimizers() -> None:
    found = watched_step(nn.Linear(4, 1), torch.ones(2, 4) * 1e30, learning_rate=1e30)

    assert (found.phase, found.module) == ("update", "(optimizer)")


def test_a_sound_step_keeps_its_numbers_and_shows_nothing() -> None:
    torch.manual_seed(0)
    watched, plain = nn.Linear(4, 1), nn.Linear(4, 1)
    plain.load_state_dict(watched.state_dict())
    batch = torch.randn(3, 4)

    found = watched_step(watched, batch)

    plain(batch).mean().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert not found.found
    assert torch.equal(watched.weight, plain.weight)


@pytest.mark.parametrize("sick", ["one", "two"])
def test_of_several_models_the_sick_one_is_named(sick: str) -> None:
    models = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)}
    with torch.no_grad():
        models[sick].weight.fill_(3e38)
    watch = StepWatch(models, [])
    watch.prepare()
    watch.start()
    for model in models.values():
        model(torch.ones(1, 4))

    found = watch.end()

    assert found is not None
    assert found.module == sick
