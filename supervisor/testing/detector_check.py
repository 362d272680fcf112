"""The suite that any detector must pass."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator

from supervisor.detectors.base import Detector
from supervisor.records import NAN, Alert, StepRecord
from supervisor.testing.synthetic_runs import HEALTHY_KINDS, TROUBLED_KINDS, synthetic_run

OBSERVED = (
    "kl",
    "latent_variance",
    "active_units",
    "recon_loss",
    "dead_layers_share",
    "layer_gradient_max",
    "entropy",
    "update_ratio",
    "activation_max",
    "activation_range",
    "dead_units_share",
    "representation_spread",
    "attention_logit_max",
    "attention_entropy",
    "loader_wait_share",
    "reward",
    "reward_score",
    "reward_spread",
    "reward_accuracy",
    "reward_confidence",
    "kl_to_reference",
    "approx_kl",
    "zero_advantage_share",
    "advantage_std",
    "value_loss",
)
"""Observed values that built-in detectors look at."""


def hostile_run() -> Iterator[StepRecord]:
    """Yields records that break careless arithmetic: NaN, infinities, zeros, negative, missing."""
    values = (NAN, math.inf, -math.inf, 0.0, -0.0, -1.0, 1e-320, 1e308, 1.0)
    step = 0
    for value in values:
        for other in values:
            yield StepRecord(
                step=step,
                loss=value,
                grad_norm=other,
                lr=value,
                loss_scale=other,
                step_time_s=value,
                batch_size=step % 3,
                memory_gib=other,
                loss_seen=True,
                grad_norm_seen=True,
                observed=dict.fromkeys(OBSERVED, value),
            )
            yield StepRecord(step=step + 1)
            step += 2


def restless_run(steps: int = 1200, seed: int = 0) -> Iterator[StepRecord]:
    """Yields records of which every figure goes its own way: calm, far off, and not seen at all.

    Loss, norm, rate, scale, step time, batch size and all of `OBSERVED` change their level at times
    of their own, for 1 to 240 steps; memory grows for ever.
    """
    figures = [*OBSERVED, "loss", "grad_norm", "lr", "loss_scale", "step_time_s", "batch_size"]
    courses = {name: _course(name, seed) for name in figures}
    for step in range(steps):
        now = {name: next(course) for name, course in courses.items()}
        scale = now.pop("loss_scale")
        loss, norm, rate = now.pop("loss"), now.pop("grad_norm"), now.pop("lr")
        yield StepRecord(
            step=step,
            loss=loss,
            grad_norm=norm,
            lr=NAN if math.isnan(rate) else 1e-3 * round(8 * rate),
            loss_scale=NAN if math.isnan(scale) else 2.0 ** round(12 + math.log2(scale)),
            step_time_s=now.pop("step_time_s"),
            batch_size=0 if math.isnan(size := now.pop("batch_size")) else round(8 * size) + 8,
            memory_gib=1.0 + 0.001 * step,
            loss_seen=not math.isnan(loss),
            grad_norm_seen=not math.isnan(norm),
            observed={name: value for name, value in now.items() if not math.isnan(value)},
        )


def _course(name: str, seed: int) -> Iterator[float]:
    """One figure: around 0.5, with stretches far above or below, and such without it (NaN)."""
    rng = random.Random(f"{name}:{seed}")
    while True:
        for _ in range(rng.randint(20, 80)):
            yield 0.5 * math.exp(rng.gauss(0.0, 0.1))
        level = rng.choice((NAN, 1e-3, 0.03, 3.0, 30.0, 3e3))
        for _ in range(rng.choice((2, 5, 12, 30, 60, 240))):
            yield level * math.exp(rng.gauss(0.0, 0.1))


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
