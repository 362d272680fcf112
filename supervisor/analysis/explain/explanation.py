"""The result of `explain`: returned, printed, and written for the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.numerics.figures.readable import figure, percent
from supervisor.table import table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """One line of the table; `at_step` is None if nothing crashed."""

    change: str
    crashed: bool
    at_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The result of `explain`; the fields are those of ``explain --json``.

    Attributes:
        root_cause: ``data``, ``precision``, ``learning_rate``, ``optimizer_state``, ``weights``,
            ``model_code``, ``transient`` or ``unknown``.
        confidence: 0...1.
        ranks: how many were replayed, together.
        rank: whose sample, module and operation these are; None where none are named, and in a
            training of one process.
        sample: index of the faulty sample in its batch; None if there is none or it is unknown.
        module: dotted path of the first module with a non-finite result, ``(loss)`` outside the
            model, None if unknown.
        operation: the operation, or in the backward pass the one whose derivative it is.
        precision: comparison of FP32 with the precision in use at the bad step
            (`PrecisionView.to_dict`); None if all was FP32, or it was not looked at.
    """

    root_cause: str
    confidence: float
    replays: tuple[ReplayOutcome, ...]
    onset_step: int
    sample: int | None
    module: str | None
    operation: str | None
    summary: str
    precision: Mapping[str, Any] | None = None
    ranks: int = 1
    rank: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        together = f", {self.ranks} ranks replayed together" if self.ranks > 1 else ""
        lines = [f"trouble from step {self.onset_step} on{together}", ""]
        fates = [
            (
                replay.change,
                f"crashed at step {replay.at_step}" if replay.crashed else "did not crash",
            )
            for replay in self.replays
        ]
        lines.append(table((), fates, indent=2))
        lines += ["", f"root cause: {self.root_cause} (confidence {self.confidence:.0%})"]
        if self.sample is not None:
            whose = "the batch" if self.rank is None else f"rank {self.rank}'s batch"
            lines.append(f"sample: number {self.sample} of {whose}")
        elif self.rank is not None:
            lines.append(f"rank: {self.rank}")
        if self.module is not None:
            lines.append(f"module: {self.module}")
        if self.operation is not None:
            lines.append(f"operation: {self.operation}")
        if self.precision is not None:
            lines += ["", *precision_lines(self.precision), ""]
        return "\n".join([*lines, self.summary])


MOST_LINES = 12


def precision_lines(seen: Mapping[str, Any]) -> list[str]:
    """Returns a table of the layers with the largest errors, in forward order, and the overflow.

    Args:
        seen: `PrecisionView.to_dict`.
    """
    layers = seen["layers"]
    worst = sorted(layers, key=lambda layer: -layer["relative_error"])[:MOST_LINES]
    rows = [
        (layer["name"], layer["type"], percent(layer["relative_error"]),
         percent(layer["own_error"]), layer["level"])
        for layer in layers
        if layer in worst
    ]  # fmt: skip
    how = "under autocast" if seen["autocast"] else "with weights in it"
    lines = [
        f"FP32 against {seen['dtype'].upper()} {how}, at this state and batch",
        table(("layer", "type", "error", "own", "level"), rows),
    ]
    if len(layers) > len(rows):
        lines.append(f"{len(layers) - len(rows)} layers with smaller errors are in --json")
    overflow = seen["overflow"]
    if overflow:
        share, largest = percent(overflow["saturated_share"]), figure(overflow["largest"])
        name = overflow["dtype"].upper()
        lines.append(
            f"overflow: {overflow['name']}: up to {largest}, {share} of it too large for {name}"
        )
        lines += [f"- {advice}" for advice in overflow["advice"]]
    return lines
