"""The suite that any detector must pass."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from supervisor.detectors.base import Detector
from supervisor.records import Alert, StepRecord
from supervisor.testing.rough_runs import hostile_run, restless_run
from supervisor.testing.synthetic_runs import HEALTHY_KINDS, TROUBLED_KINDS, synthetic_run


def check_detector(factory: Callable[[], Detector]) -> None:
    """Holds a detector to its contract, on every synthetic run and on hostile records.

    Checked: it never raises; scores are finite and not negative; alerts are complete and of the
    step judged; the same records give the same alerts; `reset` equals a fresh one; a copy made
    from `state_dict`, sent through JSON in mid-run, goes on identically, also after an announced
    change (`Detector.forget_levels`); `Detector.observed_only` is true if it is claimed.

    Args:
        factory: makes a fresh detector with the same settings each time.

    Raises:
        AssertionError: naming the run, the step and what was broken.
    """
    runs = {kind: list(synthetic_run(kind, 200, 1)) for kind in (*HEALTHY_KINDS, *TROUBLED_KINDS)}
    runs["hostile"] = list(hostile_run())
    runs["restless"] = list(restless_run())
    for kind, records in runs.items():
        first = _play(factory(), records, kind)
        again = factory()
        assert first == _play(again, records, kind), f"{kind}: not deterministic"
        again.reset()
        assert first == _play(again, records, kind), f"{kind}: reset() is not a fresh start"
        _check_copy(factory, records, kind, first)
        _check_observed_only(factory(), records, kind)


def _check_observed_only(detector: Detector, records: list[StepRecord], kind: str) -> None:
    for record in records:
        idle = detector.observed_only and not (record.observed or detector.score)
        before = detector.state_dict() if idle else {}
        alert = detector.update(record)
        if idle:
            unchanged = alert is None and repr(detector.state_dict()) == repr(before)
            assert unchanged, f"{kind}, step {record.step}: `observed_only` is not true of it"


def _check_copy(
    factory: Callable[[], Detector],
    records: list[StepRecord],
    kind: str,
    expected: list[tuple[float, str]],
) -> None:
    """Copies made before trouble, at its beginning, within it, and after an announcement."""
    detector = factory()
    done = 0
    cuts = [3 * len(records) // 10, len(records) // 2, 11 * len(records) // 20]
    if kind == "restless":
        cuts = list(range(100, len(records) - 99, 100))
    for cut in cuts:
        _play(detector, records[done:cut], kind)
        done = cut
        rest = slice(cut, cut + 300)
        told = _play(_copy(factory, detector, records, kind), records[rest], kind)
        assert told == expected[rest], f"{kind}: a copy from state_dict() goes on differently"
    try:
        detector.forget_levels()
    except Exception as error:
        raise AssertionError(f"{kind}: forget_levels raised {error!r}") from error
    copy = _copy(factory, detector, records, kind)
    after = [_play(one, records[done:], kind) for one in (detector, copy)]
    assert after[0] == after[1], f"{kind}: a copy made after forget_levels() goes on differently"


def _copy(
    factory: Callable[[], Detector], detector: Detector, records: list[StepRecord], kind: str
) -> Detector:
    """A detector that has seen something else, and was then given the state of `detector`."""
    copy = factory()
    _play(copy, records[-20:], kind)
    copy.load_state_dict(json.loads(json.dumps(detector.state_dict())))
    return copy


def _play(detector: Detector, records: list[StepRecord], kind: str) -> list[tuple[float, str]]:
    seen = []
    for record in records:
        where = f"{kind}, step {record.step}"
        try:
            alert = detector.update(record)
        except Exception as error:
            raise AssertionError(f"{where}: update raised {error!r}") from error
        score = detector.score
        assert math.isfinite(score), f"{where}: score {score}"
        assert score >= 0.0, f"{where}: score {score}"
        if alert is not None:
            _check_alert(alert, detector, record, where)
        seen.append((score, repr(alert)))
    return seen


def _check_alert(alert: Alert, detector: Detector, record: StepRecord, where: str) -> None:
    assert isinstance(alert, Alert), f"{where}: {alert!r} is no Alert"
    assert alert.detector == detector.name, f"{where}: alert names {alert.detector!r}"
    assert alert.step == record.step, f"{where}: alert is of step {alert.step}"
    for field in ("category", "kind", "message"):
        assert getattr(alert, field), f"{where}: alert without {field}"
    json.dumps(alert.to_dict())
