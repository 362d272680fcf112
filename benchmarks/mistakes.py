"""Silent training mistakes: kind x told x step x place right x healthy twin silent, as JSON.

    python -m benchmarks.mistakes FOLDER [--json FILE]   pairs NN_*_bad.py, _ok.py, LABELS.tsv
    python -m benchmarks.mistakes --healthy SCRIPT...    none of them may be accused

The scripts run one after another in this process, under torch's own hooks in place of a whole
supervised run: a `MistakeWatch` sees the same moments in the same order.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer, optimizer
from torch.optim.lr_scheduler import LRScheduler

from supervisor.records import Alert, StepRecord
from supervisor.settings import MistakeSettings
from supervisor.training_state.registry import Registry
from supervisor.worker.mistakes import places
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.script_state.user_frames import is_users


class Hooked:
    """One script's training, as the watch sees it."""

    def __init__(self, *, ends_when_done: bool) -> None:
        self.alerts: list[Alert] = []
        self.errors: list[BaseException] = []
        self.registry = Registry()
        self.watch = MistakeWatch(
            MistakeSettings(enabled=True),
            self.registry,
            world_size=1,
            tells=True,
            alerts=SimpleNamespace(tell=self._tell),  # type: ignore[arg-type]
            warn=lambda *_, **__: None,  # type: ignore[arg-type]
            barrier=lambda *_, **__: _Part(self.errors),  # type: ignore[arg-type]
        )
        self._ends_when_done = ends_when_done
        self._depth = self._steps = 0
        self._lead: Optimizer | None = None

    def _tell(self, record: StepRecord, alerts: tuple[Alert, ...]) -> None:
        self.alerts += alerts

    def before(self, optimizer: Optimizer, *_: Any) -> None:
        self._lead = self._lead or optimizer
        self.registry.add_optimizer(optimizer)
        self._depth += 1
        if self.watch.is_on:
            self.watch.before_update(optimizer)

    def after(self, optimizer: Optimizer, *_: Any) -> None:
        self._depth -= 1
        self._steps += optimizer is self._lead
        if self.watch.is_on:
            is_lead = optimizer is self._lead
            self.watch.updated(optimizer, self._steps, is_lead=is_lead, is_left_out=False)
        elif self._ends_when_done:
            raise _Done

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        call, backward = Module.__call__, torch.Tensor.backward
        inits = {cls: cls.__init__ for cls in (Optimizer, LRScheduler)}

        def forward(module: Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not self.watch.is_on or next(Module.parameters(module), None) is None:
                return call(module, *args, **kwargs)
            self.registry.add_model(module)
            self._depth += 1
            self.watch.forward(module)
            try:
                return call(module, *args, **kwargs)
            finally:
                self.watch.forward_ended()
                self._depth -= 1

        def whole_backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.watch.is_on:
                self.watch.backward(loss)
            self._depth += 1
            try:
                backward(loss, *args, **kwargs)  # type: ignore[no-untyped-call]
            finally:
                self._depth -= 1
            if self.watch.is_on:
                self.watch.backward_ended()

        def watched(cls: Any, kind: str) -> Any:
            def init(made: Any, *args: Any, **kwargs: Any) -> None:
                inits[cls](made, *args, **kwargs)
                self.watch.made(kind, made)
                if kind == "optimizer":
                    self.registry.add_optimizer(made)

            return init

        Module.__call__ = forward  # type: ignore[method-assign]
        torch.Tensor.backward = whole_backward  # type: ignore[method-assign,assignment]
        Optimizer.__init__ = watched(Optimizer, "optimizer")  # type: ignore[method-assign]
        LRScheduler.__init__ = watched(LRScheduler, "scheduler")  # type: ignore[method-assign]
        places.is_users = lambda path: path != __file__ and is_users(path)
        hooks = [
            optimizer.register_optimizer_step_pre_hook(self.before),
            optimizer.register_optimizer_step_post_hook(self.after),
        ]
        try:
            yield
        finally:
            places.is_users = is_users
            for hook in hooks:
                hook.remove()
            Module.__call__ = call  # type: ignore[method-assign]
            torch.Tensor.backward = backward  # type: ignore[method-assign]
            for cls, init in inits.items():
                cls.__init__ = init  # type: ignore[method-assign]


class _Done(BaseException):
    """The watch is over: the rest of the script can prove nothing more."""


class _Part:
    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is not None:
            self._errors.append(error)
        return True


def alerts_of(
    script: Path, words: Sequence[str] = (), *, ends_when_done: bool = True
) -> list[Alert]:
    """Runs a script until the watch is over, and returns what it was told.

    Raises:
        Exception: what went wrong in the watch, or in the script.
    """
    run = Hooked(ends_when_done=ends_when_done)
    argv, sys.argv = sys.argv, [str(script), *words]
    try:
        with run.patched(), contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(_Done):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = argv
    if run.errors:
        raise run.errors[0]
    return run.alerts


def judge_pairs(folder: Path, only: str = "") -> list[dict[str, Any]]:
    """One row for each bad script of `folder` that one process can run, with `only` in its name."""
    with (folder / "LABELS.tsv").open() as file:
        labels = list(csv.DictReader(file, delimiter="\t"))
    rows = []
    for label in labels:
        if label["label"] != "bad" or label["ranks"] != "1" or only not in label["file"]:
            continue
        script = folder / label["file"]
        alerts = alerts_of(script)
        twin = alerts_of(script.with_name(label["file"].replace("_bad", "_ok")))
        lines = {f"{script.name}:{line}" for line in label["line"].split(",")}
        first = alerts[0] if alerts else None
        where = str(first.metadata["where"]) if first else ""
        rows.append(
            {
                "script": script.name,
                "told": [alert.kind for alert in alerts],
                "step": first.step if first else None,
                "in_time": first is not None and first.step <= int(label["detectable_by_step"]),
                "named": bool(first and re.search(label["must_name"], first.message)),
                "where": where,
                "place_right": any(where.endswith(line) for line in lines),
                "twin_told": [alert.kind for alert in twin],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if given.healthy:
        for path in given.paths:
            try:
                rows.append({"script": str(path), "told": [a.message for a in alerts_of(path)]})
            except BaseException as error:
                rows.append({"script": str(path), "failed": repr(error)[:200]})
            print(json.dumps(rows[-1]), flush=True)
    else:
        for path in given.paths:
            rows += judge_pairs(path)
        for row in rows:
            print(json.dumps(row))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
