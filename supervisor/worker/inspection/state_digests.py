"""A digest of every part of the state at every boundary, for `supervisor verify` and `doctor`.

Off unless the config key ``trail`` is set: looking at every byte at every step is slow.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from typing import Any

import xxhash

from supervisor.storage.files.private_files import open_private
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.state import TrainingState, digest
from supervisor.training_state.tensors import walk
from supervisor.worker.core.part import ALWAYS, Arrived, Part
from supervisor.worker.core.step_probe import StepProbe, tensors_in
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.script_state.script_state import ScriptStatePart
from supervisor.worker.script_state.user_frames import user_frames
from supervisor.worker.script_state.user_tensors import UserTensors

SHORT = 40
"""Letters: longer facts are told by their digest."""


class TrailProbe(StepProbe):
    """Sees what any probe sees, and remembers of the last whole step what a trail is made of."""

    def __init__(self, in_environment: bool | None = None) -> None:
        self.last_data: str | None = None
        self.last_loss: str | None = None
        self.wait_s: float | None = None
        self._inputs: list[str] = []
        self._waiting_since: float | None = None
        super().__init__(in_environment)

    def saw_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().saw_forward(args, kwargs)
        self._inputs.append(digest({"": tensors_in(args, kwargs)}))

    def saw_batch(self, batch: Any) -> None:
        if self._waiting_since is not None:
            self.wait_s = time.perf_counter() - self._waiting_since
            self._waiting_since = None
        super().saw_batch(batch)

    def forget(self) -> None:
        if self._inputs:
            self.last_data = digest({"inputs": self._inputs})
            self.last_loss = float(self.loss).hex() if self.loss_seen else None
        self._inputs = []
        self._waiting_since = time.perf_counter()
        super().forget()


class StateDigests(Part):
    """Writes ``RUN/trail/rank_<r>.jsonl``: one line a boundary, attempts one after another.

    Args:
        probe: of the training.
        state: captured without the user's variables.
        held: the user's tensors and arrays.
        script state: of what the script's Python holds.
    """

    name = "trail"

    def __init__(
        self,
        context: WorkerContext,
        probe: TrailProbe,
        state: TrainingState,
        held: UserTensors,
        script_state: ScriptStatePart,
    ) -> None:
        self._probe = probe
        self._path = context.rundir.trail(context.rank)
        context.rundir.make(self._path.parent)
        self._attempt = context.attempt
        self._registry = state.registry
        self._state = state
        self._held = held
        self._script_state = script_state
        self._use = context.use

    def next_boundary(self, step: int) -> tuple[float, float]:
        return ALWAYS

    def goes_live(self, arrived: Arrived) -> None:
        self.at_boundary(arrived.step)

    def at_boundary(self, step: int) -> None:
        started = time.perf_counter()
        probe, use = self._probe, self._use
        line = {
            "attempt": self._attempt,
            "step": step,
            "data": probe.last_data,
            "loss": probe.last_loss,
            "wait_s": probe.wait_s,
            "parts": self._parts(),
            "facts": {
                "sigterm": _handler_of(signal.SIGTERM),
                "dtypes": self._dtypes(),
                "uses_autocast": use.autocast,
                "uses_batches": use.batches,
                "clips_at": use.clips_at,
            },
        }
        line["cost_s"] = time.perf_counter() - started
        with open_private(self._path, "a") as file:  # a killed process leaves what it has written
            file.write(json.dumps(line) + "\n")

    def _parts(self) -> dict[str, dict[str, str]]:
        state = self._state.capture()
        schedule = {name: digest({"": value}) for name, value in walk(state["schedulers"])}
        return {
            "weights": _digests(state["models"]),
            "optimizer": self._optimizer_digests(state["optimizers"]),
            "scaler": _digests(state["scalers"]),
            "schedule": schedule | self._learning_rates(),
            "rng": {name: digest({"": value}) for name, value in state["rng"].items()},
            "module": _digests(state["attributes"]) | _digests(state["modes"]),
            "tracked": _digests(state["tracked"]),
            "variable": {
                path: digest({"": value}) for path, value in self._held.find(user_frames()).items()
            },
            "script": {path: _short(fact) for path, fact in self._script_state.facts().items()},
        }

    def _optimizer_digests(self, optimizers: Mapping[str, Any]) -> dict[str, str]:
        names = {
            id(parameter): f"{model}.{name}"
            for model, module in self._registry.models.items()
            for name, parameter in module.named_parameters()
        }
        found: dict[str, str] = {}
        for name, optimizer in self._registry.optimizers.items():
            parameters = optimizer_parameters(optimizer)
            for index, entries in optimizers[name]["state"].items():
                owner = names.get(id(parameters[index]), f"parameter {index}")
                for entry, value in entries.items():
                    found[f"{name}.{entry} of {owner}"] = digest({"": value})
            rest = {k: v for k, v in optimizers[name].items() if k in ("shared", "parameters")}
            found |= {f"{name}.{path}": digest({"": leaf}) for path, leaf in walk(rest)}
        return found

    def _dtypes(self) -> list[str]:
        models = self._registry.models.values()
        found = {str(p.dtype).removeprefix("torch.") for m in models for p in m.parameters()}
        return sorted(found)

    def _learning_rates(self) -> dict[str, str]:
        return {
            f"learning rate of {name}, group {number}": float(group["lr"]).hex()
            for name, optimizer in self._registry.optimizers.items()
            for number, group in enumerate(optimizer.param_groups)
            if group.get("lr") is not None
        }


def _digests(part: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest({"": value}) for name, value in walk(dict(part))}


def _short(fact: str) -> str:
    return fact if len(fact) <= SHORT else xxhash.xxh3_64_hexdigest(fact.encode())


def _handler_of(signum: int) -> str:
    handler = signal.getsignal(signum)
    if handler is signal.SIG_DFL:
        return ""
    module = getattr(handler, "__module__", "")
    return f"{module}.{getattr(handler, '__qualname__', handler)}"
