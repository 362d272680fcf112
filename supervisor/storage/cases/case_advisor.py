"""Follows a run, and names the treatments that helped earlier runs in the same trouble.

A case: one crash and what was done about it; and how similar two crashes are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.records import Alert, CrashRisk, StepRecord
from supervisor.storage.files.json_files import build_record, parse_json
from supervisor.storage.run.rundir import RunDirectory

OUTCOMES = ("helped", "failed", "unknown")

_WEIGHTS = {"cause": 4.0, "shape": 2.0, "detector": 2.0, "precision": 1.0, "phase": 1.0}
"""Weights of the parts of a signature; other parts weigh 1."""
SIMILAR = 0.5
"""Share of the weights that must agree; the same cause alone is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One crash and what was done about it.

    Attributes:
        id: number in the library, 0 before it was added.
        time: unix seconds.
        run: the run directory.
        cause: a `Cause`'s value, or an `ExitCause`'s.
        signature: ``cause``, ``shape`` (of the explosion), ``detector`` (the first to alert),
            ``precision``, ``phase`` (of the training), and whatever else distinguishes crashes.
        treatment: what was done (``rollback``, ``cut_lr``, ``restart``, ...).
        outcome: one of `OUTCOMES`.
        script: its name, for people.
    """

    id: int = 0
    time: float = 0.0
    run: str = ""
    cause: str = ""
    signature: Mapping[str, Any] = field(default_factory=dict)
    treatment: str = ""
    outcome: str = "unknown"
    script: str = ""


def similarity(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Returns 0...1: the weighted share of the parts of two signatures that agree."""
    parts = one.keys() | other.keys()
    total = sum(_WEIGHTS.get(part, 1.0) for part in parts)
    equal = sum(
        _WEIGHTS.get(part, 1.0)
        for part in parts
        if part in one and part in other and one[part] == other[part]
    )
    return equal / total if total else 0.0


LOOK_BACK_STEPS = 50
"""Steps within which an alert belongs to the same trouble."""
_SUDDEN_STEPS = 2
_PHASES = ((100, "start"), (1000, "early"))


def signature(
    *, cause: str, step: int, rise_steps: int | None, detector: str | None, is_scaled: bool
) -> dict[str, Any]:
    """Returns the signature of trouble at `step`.

    Args:
        cause: a `Cause`'s value, or an `ExitCause`'s.
        step: where it was treated, or where the process ended.
        rise_steps: from the onset to the first warning; None without a warning.
        detector: the first to alert within `LOOK_BACK_STEPS`, if one did.
        is_scaled: a gradient scaler is in use.
    """
    shape = "none"
    if rise_steps is not None:
        shape = "sudden" if rise_steps <= _SUDDEN_STEPS else "gradual"
    return {
        "cause": cause,
        "shape": shape,
        "detector": detector or "none",
        "precision": "scaled" if is_scaled else "unscaled",
        "phase": next((name for end, name in _PHASES if step < end), "late"),
    }


class CaseAdvisor:
    """Builds the signature of the present trouble as `case_filing` does, and asks the memory.

    Pure: the same records, alerts and risks give the same advice.
    """

    def __init__(self, memory: CaseMemory) -> None:
        self._memory = memory
        self._alerts: list[tuple[int, str]] = []
        self._warning: tuple[int, int] | None = None
        self._was_warning = False

    @property
    def is_calm(self) -> bool:
        """Whether a calm step would change nothing here."""
        return not self._was_warning

    def update(
        self, record: StepRecord, alerts: Sequence[Alert], risk: CrashRisk
    ) -> Mapping[str, str]:
        """Takes in a step; returns what `CaseMemory.treatments` does, if it is in trouble."""
        if not (alerts or risk.warning or self._was_warning):
            return {}
        first = record.step - LOOK_BACK_STEPS
        if alerts:
            recent = [(step, name) for step, name in self._alerts if first <= step <= record.step]
            self._alerts = [*recent, *((record.step, alert.detector) for alert in alerts)]
        if risk.warning and not self._was_warning:
            self._warning = (record.step, risk.onset_step)
        self._was_warning = risk.warning
        if not risk.warning or self._warning is None or not self._memory.cases:
            return {}
        warned_at, onset = self._warning
        detector = next((name for step, name in self._alerts if first <= step), None)
        return self._memory.treatments(
            signature(
                cause=risk.cause.value,
                step=record.step,
                rise_steps=warned_at - onset,
                detector=detector,
                is_scaled=math.isfinite(record.loss_scale) and record.loss_scale != 1.0,
            )
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "alerts": [list(alert) for alert in self._alerts],
            "warning": None if self._warning is None else list(self._warning),
            "was_warning": self._was_warning,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._alerts = [(step, name) for step, name in state["alerts"]]
        self._warning = None if state["warning"] is None else tuple(state["warning"])
        self._was_warning = bool(state["was_warning"])


MAX_CASES = 500
"""Number of newest cases that are kept: 150 KB, compared within 2 ms."""


class CaseMemory:
    """The cases whose outcome is known when a run begins, kept with it in ``RUN/cases.json``.

    The parent writes it before each start or resume; workers read it. So all attempts and ranks of
    a run get the same advice, and no worker waits for a database.
    """

    def __init__(self, cases: Iterable[Case] = ()) -> None:
        known = [case for case in cases if case.outcome in ("helped", "failed")]
        self.cases: tuple[Case, ...] = tuple(known[-MAX_CASES:])

    def treatments(self, signature: Mapping[str, Any]) -> dict[str, str]:
        """Returns the treatments that helped more than they failed in similar cases, best first.

        Only cases of the same cause count, each by its similarity. The value says which case, the
        newest of the most similar ones, it was.
        """
        scores: dict[str, float] = defaultdict(float)
        nearest: dict[str, tuple[float, Case]] = {}
        for case in self.cases:
            if case.signature.get("cause") != signature["cause"]:
                continue
            likeness = similarity(signature, case.signature)
            if likeness >= SIMILAR:
                helped = case.outcome == "helped"
                scores[case.treatment] += likeness if helped else -likeness
                if helped and likeness >= nearest.get(case.treatment, (0.0,))[0]:
                    nearest[case.treatment] = likeness, case
        good = [name for name in scores if scores[name] > 0.0]
        return {
            name: f"case {nearest[name][1].id} of {nearest[name][1].run}"
            for name in sorted(good, key=lambda name: (-scores[name], name))
        }


def load_memory(rundir: RunDirectory) -> CaseMemory:
    """Returns what `keep_memory` wrote; an empty memory if it cannot be read. Never raises."""
    try:
        cases = parse_json(rundir.cases.read_bytes())
        return CaseMemory([build_record(Case, case) for case in cases])
    except (OSError, ValueError, TypeError, RecursionError):
        return CaseMemory()
