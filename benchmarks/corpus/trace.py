"""What is kept of one training: the columns of a live run and what its label is made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.corpus.recipe import Recipe
from supervisor.detectors.statistics.changes import SCALE, SHIFT
from supervisor.records import StepRecord

LIVE = ("adam_rms", "weight_norm", "activation_max")
"""Signals that only a probe in the running training sees; no log has them."""

INPUTS = (SHIFT, SCALE)
"""What a live run notes of its batches, at every step where there is something to note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run, a value a step.

    Attributes:
        recipe: how it was made.
        columns: ``loss``, ``grad_norm``, ``lr``, ``loss_scale`` (NaN: no scaler), ``outcome`` (what
            the label is judged by), ``weights_finite`` (after the step's update) and
            ``others_trained`` (as in `StepRecord`; older traces lack it: nowhere).
        observed: what a user of such a model would give to `supervisor.observe`.
        inputs: see `INPUTS`; NaN where there is nothing (older traces lack it: nowhere).
        live: see `LIVE`.
        intended: steps at which the data changed on purpose.
        batch: samples of a batch.
    """

    recipe: Recipe
    columns: dict[str, np.ndarray]
    observed: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]
    live: dict[str, np.ndarray]
    intended: tuple[int, ...]
    batch: int

    def __len__(self) -> int:
        return len(self.columns["loss"])

    def records(
        self, *, live: tuple[str, ...] = (), announced: tuple[int, ...] = ()
    ) -> Iterator[StepRecord]:
        """The steps as a live run records them; `live` names further signals to include.

        `announced`: steps at which the script calls `supervisor.announce`.
        """
        extra = {**self.observed, **self.inputs, **{name: self.live[name] for name in live}}
        rows = zip(
            *(self.columns[n] for n in ("loss", "grad_norm", "lr", "loss_scale")), strict=True
        )
        others = self.columns.get("others_trained", np.zeros(len(self)))
        for step, (loss, norm, lr, scale) in enumerate(rows):
            yield StepRecord(
                step=step,
                loss=float(loss),
                grad_norm=float(norm),
                lr=float(lr),
                loss_scale=float(scale),
                batch_size=self.batch,
                loss_seen=True,
                grad_norm_seen=True,
                scaler_skipped=bool(np.isfinite(scale) and not np.isfinite(norm)),
                others_trained=bool(others[step]),
                announced=step in announced,
                observed={k: float(v[step]) for k, v in extra.items() if not np.isnan(v[step])},
            )

    def save(self, folder: Path) -> None:
        arrays = {
            **{f"column_{name}": value for name, value in self.columns.items()},
            **{f"observed_{name}": value for name, value in self.observed.items()},
            **{f"inputs_{name}": value for name, value in self.inputs.items()},
            **{f"live_{name}": value for name, value in self.live.items()},
        }
        about = {"recipe": asdict(self.recipe), "intended": self.intended, "batch": self.batch}
        with open(folder / f"{self.recipe.name}.npz", "wb") as file:
            np.savez_compressed(file, about=json.dumps(about), **arrays)


def load_trace(path: Path) -> Trace:
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        arrays = {name: file[name] for name in file.files if name != "about"}

    def part(prefix: str) -> dict[str, np.ndarray]:
        return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

    return Trace(
        recipe=Recipe(**about["recipe"]),
        columns=part("column_"),
        observed=part("observed_"),
        inputs=part("inputs_"),
        live=part("live_"),
        intended=tuple(about["intended"]),
        batch=about["batch"],
    )
