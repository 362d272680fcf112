"""What inspecting the bad step shows, and what that adds to the table of replays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.analysis.explain.rules import Diagnosis
from supervisor.storage.run.exit_notes import ExitNote

LOSS = "(loss)"
_PHASES = ("input", "parameter", "forward", "loss", "after", "backward", "update")
"""Of `NonfiniteReport`, in the order of a step."""
_TEXTS = ("phase", "module", "operation", "kind", "cause", "fix")

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
"""Kinds of `find_nonfinite` that normal values can cause: the code lacks a guard."""


SURE_OF_DATA = 0.7
"""Below it the table of replays has not told batch and code apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding:
    """The place of the trouble within its step; texts are empty where it is unknown.

    Attributes:
        rank: which of several ranks it is; None in a training of one process.
        sample: index of the faulty sample in its batch.
        sample_is_odd: its values are to blame: not finite, or far from all others.
        sample_reason: why it is this sample.
        phase, module, operation, kind, cause, fix: as in `NonfiniteReport`.
        precision: `PrecisionView` of that step as a dict; None where all was FP32.
        rows, rows_before: batch size of this step and the one before it; None if unknown.
    """

    rank: int | None = None
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
        """The module; None if it is unknown, or the trouble was in the input."""
        return None if self.phase == "input" else self.module or None

    @property
    def detail(self) -> str:
        """One clause for people; empty if nothing was found."""
        said = []
        if self.sample is not None and (self.sample_is_odd or not self.cause):
            whose = "the batch" if self.rank is None else f"rank {self.rank}'s batch"
            said.append(f"sample {self.sample} of {whose}: {self.sample_reason}")
        elif self.cause:
            where = "in the backward pass of" if self.phase == "backward" else "in"
            at = f"{where} {self.module}: " if self.place else ""
            whose = "" if self.rank is None else f"rank {self.rank}: "
            said.append(f"{whose}{at}{self.cause}")
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
    """Combines the inspections of one or several steps, earliest first.

    Args:
        inspections: step → what `supervisor.worker.inspection.inspection` wrote.
        bad_steps: those in which a sample may be faulty; others can only have damaged the weights.
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
            texts: dict[str, Any] = {name: str(where[name]) for name in _TEXTS}
            finding = replace(finding, precision=seen.get("precision"), **texts)
    return finding


def first_of(findings: Mapping[int, StepFinding]) -> StepFinding:
    """Returns the rank's that began it: what is not finite on one rank soon is so on all.

    A sample comes before what was made of it, and that in the order of a step.

    Args:
        findings: rank → what was found of the same steps.
    """

    def earliness(rank: int) -> tuple[bool, int, int]:
        found = findings[rank]
        order = _PHASES.index(found.phase) if found.phase in _PHASES else len(_PHASES)
        return not found.sample_is_odd, order, rank

    rank = min(findings, key=earliness)
    return replace(findings[rank], rank=rank) if len(findings) > 1 else findings[rank]


def exception_of(note: ExitNote | None) -> StepFinding:
    """Returns where the script raised an exception; `NOTHING` if it did not."""
    if note is None or not note.exception:
        return NOTHING
    frames = [line.strip() for line in note.traceback.splitlines() if line.startswith("  File ")]
    at = frames[-1].removeprefix("File ") if frames else ""
    message = f"{note.exception}: {' '.join(note.message.split())[:200]}".rstrip(": ")
    return StepFinding(kind="exception", cause=f"{message} ({at})" if at else message)


def refined(diagnosis: Diagnosis, finding: StepFinding, *, is_sudden: bool) -> Diagnosis:
    """Refines a diagnosis by what the table of replays alone cannot show.

    Where normal values reach a point at which an operation is undefined, the missing guard in the
    code is the cause, not the batch or the learning rate.

    Args:
        diagnosis: from the table of replays.
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
        because="the values are normal, but the code does not guard an operation against them",
    )


def _other_size(finding: StepFinding) -> bool:
    """Whether the batch has another size than the one before, like the last of an epoch."""
    known = finding.rows is not None and finding.rows_before is not None
    return known and finding.rows != finding.rows_before
