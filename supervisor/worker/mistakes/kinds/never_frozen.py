"""A stage that its model is to freeze in ``train()``, which nobody calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torch import nn
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import some
from supervisor.worker.mistakes.evidence.places import (
    UNKNOWN,
    class_of,
    script_place,
    sources,
    told,
)

UPDATES = 20
NOTHING = nn.Module()


class NeverFrozen(Mistake):
    """``train()`` of the script's own class freezes a stage; a new module is in ``train()`` mode
    already, so the loop never calls it, and the stage is trained.

    Proof: in a class of the script ``train`` has a statement, under no condition but ``mode``, that
    switches gradients off in a part of it; after 20 updates all parameters of that part still
    require gradients and have some; no file of the script calls ``train()`` of anything, but within
    ``super()``, and none switches gradients on.

    Spares: classes of libraries, freezing under a condition, parts that are frozen or unfrozen in
    another place, trainers of libraries (they call ``train()``, and the part has no gradients).

    Sources: open-mmlab/mmpretrain#702.
    """

    kind = "stage_never_frozen"

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main or seen.updates < UPDATES:
            return None
        self.is_over = True
        place = script_place()
        for model in seen.registry.models.values():
            for module in nn.Module.modules(model):
                within = class_of(module) if "train" in vars(type(module)) else None
                for path, line in _freezes(within[1]) if within else ():
                    part = dict(nn.Module.named_modules(module)).get(path, NOTHING)
                    own = list(nn.Module.parameters(part))
                    if not own or not all(e.requires_grad and e.grad is not None for e in own):
                        continue
                    if within is None or place is None or any(map(_may_call, sources(place))):
                        return None
                    names = [f"{path}.{n}" for n, _ in nn.Module.named_parameters(part)]
                    return Proof(
                        fact=f"{type(module).__name__}.train() is to freeze {path}, and nobody "
                        f"calls it: {some(names)} have gradients after {UPDATES} updates",
                        where=told(within[0], line),
                        names=names,
                        mend="call model.train() before the loop, or freeze it in __init__",
                    )
        return None


def _freezes(inside: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """What ``train`` switches gradients off in, in any case, and where."""
    for method in inside.body:
        if not isinstance(method, ast.FunctionDef) or method.name != "train":
            continue
        mode = method.args.args[1].arg if len(method.args.args) > 1 else ""
        for line in method.body:
            if any(isinstance(node, ast.Return) for node in ast.walk(line)):
                break
            if isinstance(line, ast.If) and getattr(line.test, "id", None) == mode:
                block = line.body
            else:
                block = [line]
            for each in block:
                words = ast.unparse(each) if isinstance(each, ast.Expr) else ""
                if words.startswith("self.") and words.endswith(".requires_grad_(False)"):
                    yield words[len("self.") : -len(".requires_grad_(False)")], each.lineno


def _may_call(tree: ast.Module) -> bool:
    """Whether a file may have called ``train()``, or switched gradients on."""
    for node in ast.walk(tree):
        if getattr(node, "attr", "") == "train" and not ast.unparse(node).startswith("super()"):
            return True
        words = ast.unparse(node) if isinstance(node, (ast.Assign, ast.Call)) else ""
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") != "requires_grad_":
            continue
        if "requires_grad" in words and not words.endswith(("= False", "(False)")):
            return True
    return tree is UNKNOWN
