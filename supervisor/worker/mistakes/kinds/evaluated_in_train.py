"""An evaluation in ``train()`` mode."""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer

from supervisor.by_identity import IdentitySet
from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import (
    block_around,
    bound,
    calls,
    is_at,
    line_without_gradients,
    names_in,
    resolve,
    script_frame,
    script_place,
    sources,
)
from supervisor.worker.mistakes.evidence.tensors_within import beginning, same
from supervisor.worker.mistakes.kinds.stays_in_eval import matters

LOSSES = frozenset(
    name for name in vars(functional) if name.endswith("_loss") or name.startswith("binary_cross")
) | {"cross_entropy", "kl_div"}


class EvaluatedInTrain(Mistake):
    """No ``model.eval()``: dropout and the batch's own statistics are in each validation figure.

    Proof: the model that trains ran without gradients in ``train()``, twice at one line, on other
    batches, of a loader of another data set than the training's; the statements between the two
    have taken a loss of its output, or compared it with the targets that the loop gets. It has
    dropout or batch norm, which was on, and no file of the script ever calls ``eval()``.

    Spares: mean teachers (another module), VAT and UDA targets (their loss is taken with gradients,
    and their loader trains), batch norm that is estimated again (no loss is taken), MC dropout (one
    batch several times), the choice of hard samples (the training's own data), GANs.

    Sources: discuss.pytorch.org/t/model-train-and-model-eval-vs-model-and-model-eval/5744,
    stackoverflow.com/questions/60018578.
    """

    kind = "evaluation_in_train_mode"
    lasts = True

    def __init__(self) -> None:
        self._trained: IdentitySet[nn.Module] = IdentitySet()
        self._trained_on: set[int] = set()
        self._data: int | None = None
        self._line: tuple[nn.Module, str, int] | None = None
        self._given = torch.zeros(0)

    def batch(self, seen: SeenSoFar, iterator: Any, batch: Any) -> Proof | None:
        self._data = id(getattr(iterator, "_dataset", None))
        return None

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        module, data = call.module, self._data
        if call.with_graph:
            self._trained.add(module)
            if data is not None:
                self._trained_on.add(data)
            return None
        if module not in self._trained or data is None or data in self._trained_on:
            return None
        frame, earlier, self._given = script_frame(), self._given, beginning(call.args)
        is_special = not module.training or len(seen.registry.optimizers) != 1
        if is_special or frame is None or same(self._given, earlier):
            self.is_over = True  # the same: several draws of one batch
            return None
        line, self._line = self._line, (module, frame.f_code.co_filename, frame.f_lineno)
        if line != self._line:
            return None
        self.is_over = True
        layers = [each for each in nn.Module.named_modules(module) if matters(each[1])]
        on, place = [name for name, part in layers if part.training], script_place()
        if place is None or not on or len(on) != len(layers) or not _is_scored(frame):
            return None
        if names_in(place, "eval") or any(map(_sets_mode, sources(place))):
            return None
        return Proof(
            fact=f"evaluation runs in train() mode: {len(on)} layers of dropout or batch norm are "
            f"on, such as {on[0] or type(module).__name__}, and are in its figures",
            where=line_without_gradients(place),
            names=on,
            mend="model.eval() before the evaluation, model.train() after it",
        )

    def interrupted(self) -> None:
        self._line = None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if self._line is not None:
            self._line, self._given = None, torch.zeros(0)
        return None


def _sets_mode(tree: ast.Module) -> bool:
    """Whether it calls ``train(mode)``, which may be False."""
    return any(call.args or call.keywords for call in calls(tree, "train"))


def _is_scored(frame: FrameType) -> bool:
    """Whether the block around the forward takes a loss of its output, in any case, or compares it
    with what the loop gets."""
    block, targets = block_around(frame.f_code.co_filename, frame.f_lineno)
    outputs: set[str] = set()
    for line in block:
        if isinstance(line, (ast.If, ast.For, ast.While, ast.Try, ast.With)):
            continue
        if not is_at(line, frame.f_lineno) and not _names(line) & outputs:
            continue
        if isinstance(line, ast.Assign):
            outputs |= bound(line.targets)
        for node in ast.walk(line):
            if isinstance(node, ast.Call) and _is_loss(resolve(node.func, frame)):
                return True
            is_equality = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)
            if is_equality and _names(node) & targets:
                return True
    return False


def _names(inside: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(inside) if isinstance(each, ast.Name)}


def _is_loss(found: object) -> bool:
    name = getattr(found, "__name__", "")
    is_function = name in LOSSES and getattr(functional, name, None) is found
    return is_function or isinstance(found, _Loss)
