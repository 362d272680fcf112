"""Training that goes on in ``eval()`` mode."""

from __future__ import annotations

import ast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import (
    UNKNOWN,
    ScriptLine,
    call_around,
    calls,
    script_place,
    tree_of,
)

UPDATES = 5


class StaysInEval(Mistake):
    """An evaluation switches to ``eval()``, and nobody switches back.

    Proof: the model trained in ``train()``; it ran without gradients in ``eval()``; then 5 updates
    in a row were made of forwards in ``eval()``, with all of its dropout or batch norm off.

    Spares: batch norm alone kept in ``eval()`` (the root is in ``train()``), a model that never
    trained in ``train()``, and any script in whose files a call of ``train()`` stands after an
    ``if``: to skip it may be meant (last epochs with frozen statistics).

    Sources: fartashf/vsepp#4, wkentaro/pytorch-fcn#56,
    HuiZeng/Grid-Anchor-based-Image-Cropping-Pytorch#2.
    """

    kind = "training_in_eval_mode"
    lasts = True

    def __init__(self) -> None:
        self._trained: IdentitySet[nn.Module] = IdentitySet()
        self._evaluated: ByIdentity[nn.Module, ScriptLine | None] = ByIdentity()
        self._now: nn.Module | None = None
        self._in_a_row = 0
        self._place: ScriptLine | None = None

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        module = call.module
        if not call.with_graph:
            if not module.training and module in self._trained and module not in self._evaluated:
                self._evaluated[module] = script_place()
            return None
        if module.training:
            if seen.updates or module not in self._trained:
                self._trained.add(module)
            self._in_a_row, self._now = 0, None
        elif module in self._evaluated:
            self._now = module
            self._place = self._place or script_place()
        return None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main or self._now is None:
            return None
        module, self._now = self._now, None
        self._in_a_row += 1
        if self._in_a_row < UPDATES:
            return None
        self.is_over = True
        off = [name for name, part in nn.Module.named_modules(module) if matters(part)]
        on = any(part.training for part in nn.Module.modules(module) if matters(part))
        evaluated = self._evaluated.get(module)
        if not off or on or evaluated is None or self._place is None:
            return None
        files = {file for file, _ in (*evaluated.around, *self._place.around)}
        if any(_has_conditional_train(file) for file in files):
            return None
        return Proof(
            fact=f"training goes on in eval() mode since the evaluation: {len(off)} layers of "
            f"dropout or batch norm are off, such as {off[0] or type(module).__name__}",
            where=call_around(evaluated, "eval"),
            names=off,
            mend="model.train() after each evaluation, before the next training forward",
        )

    def interrupted(self) -> None:
        self._in_a_row = 0


def matters(part: nn.Module) -> bool:
    if isinstance(part, _DropoutNd):
        return part.p > 0
    return isinstance(part, _BatchNorm) and part.track_running_stats


def _has_conditional_train(file: str) -> bool:
    tree = tree_of(file) or UNKNOWN
    branches = [node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp, ast.Try))]
    return (
        tree is UNKNOWN
        or any(call.args or call.keywords for call in calls(tree, "train"))  # train(mode): either
        or any(any(calls(node, "train")) for node in branches if not _is_main(node))
    )


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
