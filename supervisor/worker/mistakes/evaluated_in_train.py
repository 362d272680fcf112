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

from supervisor.by_identity import ByIdentity
from supervisor.worker.mistakes.evidence.places import (
    block_around,
    calls,
    line_with,
    resolve,
    script_files,
    script_frame,
    tree_of,
)
from supervisor.worker.mistakes.evidence.tensors_within import beginning, same
from supervisor.worker.mistakes.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.stays_in_eval import matters

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
        self._trained: ByIdentity[nn.Module, bool] = ByIdentity()
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
            self._trained[module] = True
            if data is not None:
                self._trained_on.add(data)
            return None
        if module not in self._trained or data is None or data in self._trained_on:
            return None
        frame = script_frame()
        if not module.training or frame is None or len(seen.registry.optimizers) != 1:
            self.is_over = True
            return None
        earlier, self._given = self._given, beginning(call.args)
        if same(self._given, earlier):
            self.is_over = True  # several draws of one batch
            return None
        line, self._line = self._line, (module, frame.f_code.co_filename, frame.f_lineno)
        if line != self._line:
            return None
        self.is_over = True
        place, layers = call.place(), [name for name, part in named(module) if matters(part)]
        on = [name for name, part in named(module) if matters(part) and part.training]
        if place is None or not on or len(on) != len(layers) or not _is_scored(frame):
            return None
        if any(_may_evaluate(file) for file in script_files(place)):
            return None
        return Proof(
            fact=(
                f"evaluation runs in train() mode: {len(on)} layers of dropout or batch norm are "
                f"on, such as {on[0] or type(module).__name__}, and are in its figures"
            ),
            where=line_with(place, "no_grad", "inference_mode", "set_grad_enabled"),
            names=tuple(on),
            mend="model.eval() before the evaluation, model.train() after it",
        )

    def interrupted(self) -> None:
        self._line = None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        self._line, self._given = None, torch.zeros(0)
        return None


named = nn.Module.named_modules


def _may_evaluate(file: str) -> bool:
    tree = tree_of(file)
    if tree is None or any(calls(tree, "eval")):
        return True
    return any(
        isinstance(node, ast.Call)
        and (node.args or node.keywords)
        and getattr(node.func, "attr", "") == "train"
        for node in ast.walk(tree)
    )


def _is_scored(frame: FrameType) -> bool:
    """Whether the block around the forward takes a loss of its output, in any case, or compares it
    with what the loop gets."""
    block, loop = block_around(frame.f_code.co_filename, frame.f_lineno)
    targets = (
        {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
        if (isinstance(loop, ast.For))
        else set()
    )
    outputs: set[str] = set()
    for statement in block:
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try, ast.With)):
            continue
        has_forward = statement.lineno <= frame.f_lineno <= (statement.end_lineno or 0)
        used = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
        if not has_forward and not used & outputs:
            continue
        if isinstance(statement, ast.Assign):
            outputs |= {
                each.id
                for target in statement.targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            }
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _is_loss(resolve(node.func, frame)):
                return True
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                if names & targets:
                    return True
    return False


def _is_loss(found: object) -> bool:
    if isinstance(found, _Loss):
        return True
    name = getattr(found, "__name__", "")
    return name in LOSSES and getattr(functional, name, None) is found
