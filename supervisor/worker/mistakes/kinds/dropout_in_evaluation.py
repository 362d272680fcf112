"""Dropout that ``eval()`` does not switch off."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from supervisor.by_identity import IdentitySet
from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import is_compiled
from supervisor.worker.mistakes.evidence.places import (
    UNKNOWN,
    function_at,
    is_at,
    script_frame,
    told,
    tree_of,
)
from supervisor.worker.mistakes.evidence.tensors_within import beginning, same

DROPOUTS = frozenset(name for name in vars(functional) if name.endswith(("dropout", "dropout1d",
    "dropout2d", "dropout3d")) and not name.startswith("_"))  # fmt: skip
ATTENTION = "scaled_dot_product_attention"


class DropoutInEvaluation(Mistake):
    """``F.dropout(x, p)``: without ``training=self.training`` it is always on.

    Proof: the model trained; then it ran in ``eval()`` without gradients, on two batches in a row,
    and both times one line of the script, in a module that got gradients, called one of torch's
    dropouts, which was on, and passes no ``training``. So does ``scaled_dot_product_attention``
    with a ``dropout_p`` that is a number or an attribute.

    Spares: ``training=True`` (Monte Carlo dropout), one batch several times (the same), rates that
    depend on anything, modules of libraries, compiled models.

    Sources: discuss.pytorch.org/t/dropout-functional-api-advantages-disadvantages/181,
    huggingface/transformers#33844.
    """

    kind = "dropout_in_evaluation"
    lasts = True

    def __init__(self) -> None:
        self._trained: IdentitySet[nn.Module] = IdentitySet()
        self._looks: _Looks | None = None
        self._given = torch.zeros(0)
        self._lines: list[set[tuple[str, int]]] = []

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        module = call.module
        if call.with_graph and module.training:
            self._trained.add(module)
        if call.with_graph or module.training or module not in self._trained:
            return None
        earlier, self._given = self._given, beginning(call.args)
        if same(self._given, earlier) or is_compiled(module):
            self.is_over = True  # several draws of one batch
        elif len(self._lines) < 2:
            self._looks = _Looks()
            self._looks.__enter__()  # type: ignore[no-untyped-call]
        else:
            self.is_over = True
            for file, line in sorted(set.intersection(*self._lines)):
                return _proof(module, file, line)
        return None

    def forward_ended(self) -> None:
        if self._looks is not None:
            looks, self._looks = self._looks, None
            looks.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._lines.append(looks.found)
            self.is_over = not looks.found


class _Looks(TorchFunctionMode):
    """Sees which lines of the script drop out, for one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, int]] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given, name = kwargs or {}, getattr(func, "__name__", "")
        try:
            is_on = given.get("training") is True and given.get("p", 0.0) > 0.0
            if (name in DROPOUTS and is_on) or (name == ATTENTION and given.get("dropout_p", 0.0)):
                self._note()
        except Exception:  # the script's forward goes on
            self.found.clear()
        return func(*args, **given)

    def _note(self) -> None:
        frame = script_frame()
        module = frame.f_locals.get("self") if frame else None
        if frame is None or not isinstance(module, nn.Module):
            return
        file, line = frame.f_code.co_filename, frame.f_lineno
        has_gradients = any(each.grad is not None for each in nn.Module.parameters(module))
        if has_gradients and _is_unasked(file, line):
            self.found.add((file, line))


def _is_unasked(file: str, line: int) -> bool:
    """Whether a dropout at a line is called in any case, at a rate that depends on nothing."""
    nodes = [node for node in ast.walk(function_at(file, line)) if is_at(node, line)]
    if any(isinstance(node, (ast.If, ast.IfExp, ast.BoolOp, ast.Match)) for node in nodes):
        return False
    for call in nodes:
        function = getattr(call, "func", None)
        name = getattr(function, "attr", None) or getattr(function, "id", None)
        if not isinstance(call, ast.Call) or name not in {*DROPOUTS, ATTENTION}:
            continue
        given = {each.arg: each.value for each in call.keywords}
        rate = given.get("dropout_p" if name == ATTENTION else "p")
        is_whole = name == ATTENTION or ("training" not in given and len(call.args) < 3)
        if name != ATTENTION and len(call.args) > 1:
            rate = call.args[1]
        if (
            is_whole
            and None not in given
            and isinstance(rate, (ast.Attribute, ast.Constant, type(None)))
        ):
            return True
    return False


def _proof(model: nn.Module, file: str, line: int) -> Proof:
    cls = next(
        node.name
        for node in ast.walk(tree_of(file) or UNKNOWN)
        if isinstance(node, ast.ClassDef) and is_at(node, line)
    )
    names = [n or cls for n, part in nn.Module.named_modules(model) if type(part).__name__ == cls]
    return Proof(
        fact=f"dropout is on in evaluation: {', '.join(names[:1]) or cls} calls it without "
        "training=self.training, which eval() cannot switch off",
        where=told(file, line),
        names=names,
        mend="F.dropout(x, p, training=self.training), or an nn.Dropout",
    )
