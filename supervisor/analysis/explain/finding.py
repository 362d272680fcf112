"""What a close look at the bad step shows, and what it adds to the table of replays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.analysis.explain.rules import Diagnosis
from supervisor.storage.run.exit_notes import ExitNote

LOSS = "(loss)"

UNGUARDED = frozenset(
    {
        "all_masked",
        "division_by_zero",
        "empty_reduction",
        "infinite_derivative",
        "log_of_negative",
        "log_of_zero",
        "no_targets",
        "outside_domain",
        "root_of_negative",
        "too_few_elements",
        "zero_variance",
    }
)
"""Kinds of `find_nonfinite` that ordinary values can meet: the code has no guard against them."""


SURE_OF_DATA = 0.7
"""Below it the table of replays has not told batch and code apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding:
    """The place of the trouble within its step; texts are empty where it cannot be told.

    Attributes:
        sample: index of the guilty sample in its batch.
        sample_is_odd: the sample's own values are to blame: not finite, or far from all others.
        sample_reason: why it is that sample.
        phase, module, operation, kind, cause, fix: as in `NonfiniteReport`.
        precision: `PrecisionView` of that step as a dict; None where all was FP32.
        rows, rows_before: samples in the batch of the step, and of the one before it; None if that
            cannot be told.
    """

    sample: int | None = None
    sample_is_odd: bool = False
    sample_reason: str = ""
    phase: str = ""
    module: str = ""
    operation: str = ""
    kind: str = ""
    cause: str = ""
    fix: str = ""
    precision: Mapping[str, Any] | None = None
    rows: int | None = None
    rows_before: int | None = None

    @property
    def place(self) -> str | None:
        """The module, None if the trouble was in the input or cannot be told."""
        return None if self.phase == "input" else self.module or None

    @property
    def detail(self) -> str:
        """One clause for people; empty if nothing was found."""
        said = []
        if self.sample is not None and (self.sample_is_odd or not self.cause):
            said.append(f"sample {self.sample} of the batch: {self.sample_reason}")
        elif self.cause:
            where = "in the backward pass of" if self.phase == "backward" else "in"
            at = f"{where} {self.module}: " if self.place else ""
            said.append(f"{at}{self.cause}")
            if self.sample is not None:
                said.append(f"sample {self.sample} of the batch meets it")
        overflow = (self.precision or {}).get("overflow")
        if overflow:
            said.append(
                f"in FP32 the {overflow['operation']} in {overflow['module']} reaches "
                f"{overflow['largest']:.3g}, more than {overflow['dtype'].upper()} holds"
            )
        return "; ".join(said)


NOTHING = StepFinding()


def finding_of(
    inspections: Mapping[int, Mapping[str, Any]], bad_steps: Iterable[int]
) -> StepFinding:
    """Puts together what was seen in one step or several, the earliest first.

    Args:
        inspections: step → what `supervisor.worker.inspection.inspection` wrote.
        bad_steps: in which a sample may be guilty; other steps can only have spoiled the weights.
    """
    finding = NOTHING
    blamed = set(bad_steps)
    for step, seen in sorted(inspections.items()):
        if step in blamed and finding.rows is None:
            finding = replace(finding, rows=seen.get("rows"))
        elif finding.rows is None:
            finding = replace(finding, rows_before=seen.get("rows"))
        if finding.sample is None and step in blamed and seen["sample"] is not None:
            finding = replace(
                finding,
                sample=int(seen["sample"]),
                sample_is_odd=bool(seen["sample_is_odd"]),
                sample_reason=str(seen["sample_reason"]),
            )
        where = seen["nonfinite"] or {}
        if where.get("found") and not finding.kind:
            finding = replace(
                finding,
                phase=str(where["phase"]),
                module=str(where["module"]),
                operation=str(where["operation"]),
                kind=str(where["kind"]),
                cause=str(where["cause"]),
                fix=str(where["fix"]),
                precision=seen.get("precision"),
            )
    return finding


def exception_of(note: ExitNote | None) -> StepFinding:
    """Returns where a script's own exception was raised; nothing found if it raised none."""
    if note is None or not note.exception:
        return NOTHING
    frames = [line.strip() for line in note.traceback.splitlines() if line.startswith("  File ")]
    at = frames[-1].removeprefix("File ") if frames else ""
    message = f"{note.exception}: {' '.join(note.message.split())[:200]}".rstrip(": ")
    return StepFinding(kind="exception", cause=f"{message} ({at})" if at else message)


def refined(diagnosis: Diagnosis, finding: StepFinding, *, is_sudden: bool) -> Diagnosis:
    """Returns the diagnosis with what the table alone cannot tell.

    A batch or a learning rate that brings ordinary values to where an operation is not defined is
    only the occasion; the missing guard in the code is the cause.

    Args:
        diagnosis: by the table of replays.
        finding: of the bad step.
        is_sudden: the numbers were healthy until then.
    """
    if not is_sudden or finding.sample_is_odd:
        return diagnosis
    if finding.kind == "exception" and diagnosis.root_cause == "data" and _other_size(finding):
        text = (
            f"the code fails on a batch of {finding.rows}, where the one before had "
            f"{finding.rows_before}"
        )
        return Diagnosis(root_cause="model_code", confidence=0.7, because=text)
    is_open = diagnosis.root_cause == "data" and diagnosis.confidence < SURE_OF_DATA
    if finding.kind == "nonfinite_number" and is_open:
        text = "the code itself brings in a number that is not finite, in any order of the data"
        return Diagnosis(root_cause="model_code", confidence=0.7, because=text)
    if finding.kind not in UNGUARDED:
        return diagnosis
    if finding.phase not in ("forward", "loss", "backward") or diagnosis.root_cause == "precision":
        return diagnosis
    if diagnosis.root_cause == "model_code":
        return replace(diagnosis, confidence=max(diagnosis.confidence, 0.9))
    return Diagnosis(
        root_cause="model_code",
        confidence=0.8,
        because="the values are ordinary, but the code does not guard an operation against them",
    )


def _other_size(finding: StepFinding) -> bool:
    """A batch of a size of its own, as the last of an epoch is: its values need not be to blame."""
    known = finding.rows is not None and finding.rows_before is not None
    return known and finding.rows != finding.rows_before
