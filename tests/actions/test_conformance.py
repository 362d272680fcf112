from __future__ import annotations

import pytest

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.catalogue import ACTIONS, build_actions
from supervisor.records import ActionResult
from tests.actions.conformance import check_action


@pytest.mark.parametrize("kind", ACTIONS, ids=lambda kind: kind.name)
def test_every_action_conforms(kind: type[Action]) -> None:
    check_action(kind)


def test_every_action_is_built_under_its_own_name() -> None:
    actions = build_actions()

    assert {name: action.name for name, action in actions.items()} == {n: n for n in actions}
    assert len(actions) == len(ACTIONS)


class Leaves(Action):
    """Forgets to take its change back."""

    name = "leaves"

    def apply(self, context: ActionContext) -> ActionResult:
        context.controls.lr_factor = 0.5
        return self.done("half the rate")

    def undo(self, context: ActionContext) -> ActionResult:
        return self.done("nothing, in truth")


class Raises(Action):
    name = "raises"

    def apply(self, context: ActionContext) -> ActionResult:
        raise KeyError("x")


class Shouts(Leaves):
    name = "Shouts"


class Poisons(Action):
    name = "poisons"

    def apply(self, context: ActionContext) -> ActionResult:
        for model in context.registry.models.values():
            next(model.parameters()).data.fill_(float("nan"))
        return self.done("NaN")


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Leaves, "not neutral"),
        (Raises, "apply raised KeyError"),
        (Shouts, "snake case"),
        (Poisons, "not finite"),
    ],
)
def test_what_does_not_conform_is_told_why(kind: type[Action], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_action(kind)
