"""Evaluation and training in the other's mode."""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import is_compiled
from supervisor.worker.mistakes.evidence.places import (
    UNKNOWN,
    ScriptLine,
    block_around,
    bound,
    call_around,
    calls,
    function_at,
    is_at,
    line_without_gradients,
    names_in,
    resolve,
    script_frame,
    script_place,
    sources,
    told,
    tree_of,
)
from supervisor.worker.mistakes.evidence.tensors_within import beginning, same

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
