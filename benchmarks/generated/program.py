"""Puts a training program together: a `Recipe` says of what, `text` returns it as a script."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.generated import (
    parts_of_chance,
    parts_of_control,
    parts_of_files,
    parts_of_memory,
    parts_of_metrics,
    parts_of_outside,
)
from benchmarks.generated.loops import LOOPS
from benchmarks.generated.models import MADE, MODELS, OPTIMIZERS
from benchmarks.generated.part import Part

PARTS = {
    part.name: part
    for part in (
        *parts_of_metrics.PARTS,
        *parts_of_control.PARTS,
        *parts_of_memory.PARTS,
        *parts_of_files.PARTS,
        *parts_of_chance.PARTS,
        *parts_of_outside.PARTS,
    )
}
PLACES = (
    "module",
    "function",
    "generator",
    "closure",
    "globals",
    "trainer",
    "dictionary",
    "namespace",
)
"""Where the training keeps its variables; the first three are written in one piece."""
INLINE = PLACES[:3]
MOST_PARTS = 7

PRELUDE = """
import collections, copy, csv, dataclasses, functools, glob, gzip, heapq, io, itertools, json
import logging, math, os, pathlib, pickle, random, statistics, sys, types
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

torch.manual_seed(SEED); random.seed(SEED); np.random.seed(SEED); torch.set_num_threads(1)
X, XV = torch.randn(48, 8), torch.randn(96, 8)
Y, YV = ((d[:, 0] * 2 + d[:, 1] > 0).long() + 2 * (d[:, 2] > 0).long() for d in (X, XV))

def moment(name):
    sys.audit("moment", name)  # nothing happens, unless somebody looks
"""

OWN_OPTIMIZER = """
class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr}); self.taken = 0
    @torch.no_grad()
    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None: continue
                held = self.state[p].setdefault("mean", torch.zeros_like(p))
                held.mul_(0.9).add_(p.grad, alpha=0.1); p.sub_(held.sign(), alpha=group["lr"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Of what a program is made, and how it is killed; the same recipe gives the same program.

    Attributes:
        evaluate_every: steps; 0: at the end of each epoch.
        kills: where each attempt is killed, as a share of the moments of an undisturbed run.
        fault: moment in torch at which it is killed instead of the first of `kills`; "" for none.
        every: steps from one checkpoint to the next.
        given: how it is given its standard input: as a file, or by a pipe.
    """

    place: str = "module"
    loop: str = "shuffling loader"
    model: str = "two layers"
    optimizer: str = "SGD with momentum"
    parts: tuple[str, ...] = ()
    evaluate_every: int = 0
    seed: int = 0
    kills: tuple[float, ...] = (0.6,)
    fault: str = ""
    every: int = 4
    given: str = "file"


def random_recipe(chance: random.Random) -> Recipe:
    """Returns any recipe; all that is drawn comes from `chance`."""
    parts: list[str] = []
    for name in chance.sample(list(PARTS), chance.randint(0, MOST_PARTS)):
        if not _excludes(parts, name):
            parts.append(name)
    kills = tuple(round(chance.uniform(0.15, 1.0), 3) for _ in range(chance.choice((1, 1, 1, 2))))
    return Recipe(
        place=chance.choice(PLACES),
        loop=_one_of(chance, LOOPS),
        model=_one_of(chance, MODELS),
        optimizer=_one_of(chance, OPTIMIZERS),
        parts=tuple(parts),
        evaluate_every=chance.choice((0, 0, 3, 5)),
        seed=chance.randint(0, 99),
        kills=kills,
        fault=chance.choice(("", "", "", "forward", "backward", "update", "evaluation", "after")),
        every=chance.choice((1, 3, 4, 7)),
        given=chance.choice(("file", "pipe")),
    )


def simpler(recipe: Recipe) -> Iterable[Recipe]:
    """Returns recipes with one thing less; for whoever looks for the least that fails."""
    plain = Recipe()
    for name in recipe.parts:
        yield replace(recipe, parts=tuple(p for p in recipe.parts if p != name))
    for field in ("place", "loop", "model", "optimizer", "evaluate_every", "fault", "every"):
        if getattr(recipe, field) != getattr(plain, field):
            yield replace(recipe, **{field: getattr(plain, field)})
    if len(recipe.kills) > 1:
        yield replace(recipe, kills=recipe.kills[:1])


def text(recipe: Recipe) -> str:
    """Returns the whole script."""
    parts = sorted(map(PARTS.__getitem__, recipe.parts), key=lambda part: part.alone != "first")
    net = MODELS[recipe.model]
    top = [PRELUDE.replace("SEED", str(recipe.seed)), OWN_OPTIMIZER, _clean(net)]
    top += [_clean(part.top) for part in parts]
    body = _Body(recipe, parts)
    told = (Path(__file__).parent / "final_state.py").read_text().partition('"""\n\n')[2]
    ending = "tell_final_state(dict(globals()))"
    written = [*top, body.written(), told, ending]
    return "\n\n".join(piece.strip("\n") for piece in written if piece.strip()) + "\n"


class _Body:
    """The training itself, in the place where it keeps its variables."""

    def __init__(self, recipe: Recipe, parts: list[Part]) -> None:
        self._recipe = recipe
        self._parts = parts
        self._place = recipe.place

    def written(self) -> str:
        made = MADE.get(self._recipe.model, "Net()")
        lines = ["$step, $epoch, $stop, $value = 0, 0, False, 0.0", f"$model = {made}"]
        if self._recipe.model == "lazy layers":
            lines.append("$model(X[:2])")
        if self._recipe.loop == "folds":
            lines.append("first_weights = copy.deepcopy($model.state_dict())")
        lines.append(f"$optimizer = {OPTIMIZERS[self._recipe.optimizer]}")
        setup = "\n".join(lines) + "\n" + self._of("setup")
        end = self._of("end") + 'print("ended", $step, $value)\n'
        step, evaluation, epoch = self._step(), self._evaluation(), self._epoch()
        loop = _clean(LOOPS[self._recipe.loop])
        if self._place in INLINE:
            step = step.replace("EVALUATE\n", evaluation).replace("SKIP", "continue")
            epoch = epoch.replace("EVALUATE\n", evaluation)
            whole = setup + _put(_put(loop, "STEP", step), "EPOCH", epoch) + end
            return self._in_one_piece(whole)
        return self._in_functions(setup, loop, step, evaluation, epoch, end)

    def _in_one_piece(self, whole: str) -> str:
        if self._place == "module":
            return _named(whole, "{}")
        if self._place == "function":
            text = "def main():\n" + _indent(_named(whole, "{}")) + "    return locals()\n\n"
            return text + "final = main()"
        whole = _named(whole, "{}").replace('moment("step")', 'moment("step"); yield step')
        text = "final = {}\n\ndef training():\n" + _indent(whole) + "    final.update(locals())\n\n"
        return text + 'for done in training():\n    if done % 8 == 0: print("done", done)'

    def _in_functions(
        self, setup: str, loop: str, step: str, evaluation: str, epoch: str, end: str
    ) -> str:
        first = {"trainer": "self", "dictionary": "state", "namespace": "s"}.get(self._place, "")
        name = {"trainer": "self.{}", "dictionary": "state['{}']", "namespace": "s.{}"}
        form = name.get(self._place, "{}")
        call = "self." if self._place == "trainer" else ""
        given = first if call == "" else ""

        def calling(function: str, *more: str) -> str:
            return f"{call}{function}({', '.join(filter(None, (given, *more)))})\n"

        loop = _put(loop, "STEP", calling("train_step", "x", "y"))
        loop = _put(loop, "EPOCH", calling("end_of_epoch"))
        step = step.replace("EVALUATE\n", calling("evaluate")).replace("SKIP", "return")
        epoch = epoch.replace("EVALUATE\n", calling("evaluate"))
        functions = {
            "train_step": (("x", "y"), step),
            "evaluate": ((), evaluation),
            "end_of_epoch": ((), epoch),
        }
        written = ""
        for function, (more, body) in functions.items():
            written += self._function(function, (first, *more), body, form)
        all_of_it = setup + loop + end
        if self._place == "globals":
            return written + _named(all_of_it, form)
        if self._place == "closure":
            names = sorted(_names(setup + loop + step + evaluation + epoch + end))
            begin = " = ".join(names) + " = None\n"
            inner = begin + written + _named(all_of_it, form) + "return locals()\n"
            return "def main():\n" + _indent(inner) + "\nfinal = main()"
        fit = self._function("fit", (first,), all_of_it, form)
        if self._place == "trainer":
            return "class Trainer:\n" + _indent(written + fit) + "\nfinal = Trainer()\nfinal.fit()"
        made = "{}" if self._place == "dictionary" else "types.SimpleNamespace()"
        return f"{written}{fit}final = {made}\nfit(final)"

    def _function(self, name: str, parameters: Iterable[str], body: str, form: str) -> str:
        head = f"def {name}({', '.join(filter(None, parameters))}):\n"
        names = sorted(_names(body))
        word = {"globals": "global", "closure": "nonlocal"}.get(self._place)
        said = f"{word} {', '.join(names)}\n" if word and names else ""
        return head + _indent(said + _named(body, form)) + "\n"

    def _step(self) -> str:
        every = self._recipe.evaluate_every
        evaluates = f"if $step % {every} == 0:\n    EVALUATE\n" if every else ""
        return (
            self._of("batch")
            + 'moment("batch")\nout = $model(x)\nloss = F.cross_entropy(out, y)\n'
            + self._of("loss")
            + 'moment("loss")\nloss.backward()\nmoment("backward")\n'
            + self._of("gradient")
            + '$optimizer.step()\nmoment("update")\n$optimizer.zero_grad()\n$step += 1\n'
            + self._of("after")
            + 'moment("step")\n'
            + _put_evaluation(evaluates, self._place, self._evaluation())
        )

    def _evaluation(self) -> str:
        return (
            "$model.eval()\nwith torch.no_grad():\n"
            + _indent(
                'logits = $model(XV)\nmoment("evaluation")\n'
                "$value = F.cross_entropy(logits, YV).item()\n"
                + self._of("evaluation")
                + 'print("evaluation", $step, $value)\n'
            )
            + "$model.train()\n"
        )

    def _epoch(self) -> str:
        evaluates = "" if self._recipe.evaluate_every else "EVALUATE\n"
        return evaluates + self._of("epoch") + 'moment("epoch")\nprint("epoch", $epoch, $step)\n'

    def _of(self, where: str) -> str:
        return "".join(_clean(getattr(part, where)) for part in self._parts)


def _put_evaluation(evaluates: str, place: str, evaluation: str) -> str:
    """In one piece an evaluation within a step stands deeper than one that ends an epoch."""
    return _put(evaluates, "EVALUATE", evaluation) if place in INLINE else evaluates


def _excludes(parts: list[str], name: str) -> bool:
    alone = PARTS[name].alone
    return bool(alone) and any(PARTS[part].alone == alone for part in parts)


def _one_of(chance: random.Random, names: Iterable[str]) -> str:
    return chance.choice(list(names))


def _clean(piece: str) -> str:
    cleaned = textwrap.dedent(piece).strip("\n")
    return cleaned + "\n" if cleaned.strip() else ""


def _indent(piece: str) -> str:
    return textwrap.indent(piece, "    ")


def _put(template: str, word: str, piece: str) -> str:
    """Puts a piece where a line holds the word alone, as deep as that line."""

    def deep(match: re.Match[str]) -> str:
        return textwrap.indent(piece, match.group(1))

    return re.sub(rf"^( *){word}\n", deep, template, flags=re.MULTILINE)


def _names(piece: str) -> set[str]:
    return set(re.findall(r"\$([a-z_]\w*)", piece))


def _named(piece: str, form: str) -> str:
    return re.sub(r"\$([a-z_]\w*)", lambda match: form.format(match.group(1)), piece)
