"""How gradients and values of the layers are when something is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from supervisor.errors import UsageError, pass_on
from supervisor.numerics.layers.gradient_flow import gradient_flow
from supervisor.numerics.layers.model_health import model_health
from supervisor.ranks import LEAD_RANK
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker.core.part import Ended, Part

FILE = "gradient_flow.json"
MIN_STEPS_APART = 100
"""Each look reads all parameters and gradients once: rare even in a run full of anomalies."""
MOST_FINDINGS = 100


class ModelScene(Part):
    """Writes ``report/gradient_flow.json`` at an anomaly, and at the end of the process.

    Never called in a calm step. Only rank 0 writes; replicas hold the same. A look that fails is
    told once, and there is no other.

    Args:
        models: gives the registered models by their names; with several, the name comes before
            each layer's path.
        warn: is told what failed.
    """

    name = "scene of the end"

    def __init__(
        self,
        rundir: RunDirectory,
        rank: int,
        models: Callable[[], Mapping[str, nn.Module]],
        warn: Callable[[str], None],
    ) -> None:
        self._rundir = rundir
        self._models = models
        self._warn = warn
        self._is_off = rank != LEAD_RANK
        self._last_step: int | None = None

    def at_anomaly(self, step: int, *, worse: bool, folder: Path | None) -> None:
        """Called between backward and update of an anomalous step.

        Args:
            step: of the anomaly.
            worse: than those before: looked at however soon it comes.
            folder: of the captured batch, which gets a copy; None without one.
        """
        if worse or not self._is_recent(step):
            places = [self._rundir.report, *([folder] if folder is not None else [])]
            self._look(step, "anomaly", places)
            self._last_step = step

    def ends(self, how: Ended) -> None:
        """The last step made; an anomaly shortly before is not replaced."""
        step = how.steps - 1
        if step >= 0 and not self._is_recent(step):
            self._look(step, "end", [self._rundir.report])

    def _is_recent(self, step: int) -> bool:
        return self._last_step is not None and step - self._last_step < MIN_STEPS_APART

    def _look(self, step: int, moment: str, places: Sequence[Path]) -> None:
        if self._is_off:
            return
        try:
            seen = self._seen(step, moment)
            if seen["layers"] or seen["unhealthy"]:
                self._rundir.make(self._rundir.report)
                for folder in places:
                    write_json(folder / FILE, seen)
        except BaseException as error:  # a model of any kind, a device without memory, a full disk
            pass_on(error)
            self._is_off = True
            self._warn(f"gradient flow of step {step}: {type(error).__name__}: {error}")

    def _seen(self, step: int, moment: str) -> dict[str, Any]:
        models = self._models()
        layers: list[dict[str, Any]] = []
        unhealthy: list[dict[str, Any]] = []
        for name, model in models.items():
            prefix = f"{name}." if len(models) > 1 else ""
            findings = model_health(model).findings
            unhealthy += [found.to_dict() | {"name": prefix + found.name} for found in findings]
            with contextlib.suppress(UsageError):  # the gradients are gone already
                flow = gradient_flow(model).layers
                if all(layer.zero_share == 1.0 for layer in flow):
                    continue  # they were zeroed, or belong to steps that were only replayed
                layers += [layer.to_dict() | {"name": prefix + layer.name} for layer in flow]
        return {
            "step": step,
            "moment": moment,
            "layers": layers,
            "unhealthy": unhealthy[:MOST_FINDINGS],
        }
