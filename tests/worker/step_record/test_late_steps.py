"""Steps whose numbers come late are those whose numbers are read at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, SparseAdam
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.detectors.statistics.changes import SCALE, SHIFT
from supervisor.ladder.guard import NO_LIMIT, NormLimit
from supervisor.storage.steps.flight_recorder import UPDATE_SKIPPED
from supervisor.worker.core.device_values import READS, treat_cpu_as_device
from supervisor.worker.step_record import step_recorder
from supervisor.worker.step_record.late_steps import is_bad, takes_flag
from tests.worker.conftest import Start
from tests.worker.step_record.late_runs import CALM, FAULTS, KINDS, Kind, differing, fused, train

AT = CALM + 6
"""Where something goes wrong: the run is calm."""
STEPS = AT + CALM + 10
"""It is calm again."""
USUAL = ("fused AdamW", "not fused", "fused with a scaler", "a scaler", "two optimizers")
"""The others with ``--all``."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    treat_cpu_as_device(False)
    READS.may_wait = True


def kinds(usual: tuple[str, ...]) -> list[Any]:
    marks = {True: (), False: pytest.mark.exhaustive}
    return [pytest.param(name, marks=marks[name in usual]) for name in KINDS]


@pytest.mark.parametrize("name", kinds((*USUAL, "gradients left", "a closure", "of two kinds")))
def test_a_healthy_training_is_the_same_to_the_bit_and_does_not_wait(
    tmp_path: Path, start: Start, name: str
) -> None:
    kind = KINDS[name]
    at_once = train(tmp_path / "once", start, kind, "off", CALM + 26)

    late = train(tmp_path / "late", start, kind, "on", CALM + 26)

    assert differing(late, at_once) == []
    assert max(late.waits[CALM + 2 :]) <= kind.waits


def test_no_step_waits_because_silent_mistakes_are_looked_for(tmp_path: Path, start: Start) -> None:
    settings = ("mistakes.enabled=true",)

    run = train(tmp_path, start, KINDS["fused AdamW"], "on", CALM + 26, settings=settings)

    assert max(run.waits[CALM + 2 :]) == 0


FEW = {("fused AdamW", fault) for fault in FAULTS} | {
    ("fused with a scaler", "nan gradient"),
    ("two optimizers", "nan gradient of the follower"),
    ("gradients left", "nan gradient"),
}
MANY = [(name, fault) for name in KINDS for fault in FAULTS]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *sorted(FEW),
        *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in MANY if one not in FEW),
    ],
)
def test_what_must_not_reach_the_weights_is_kept_out_all_the_same(
    tmp_path: Path, start: Start, name: str, fault: str
) -> None:
    kind = replace(KINDS[name], faults={AT: fault})
    at_once = train(tmp_path / "once", start, kind, "off", STEPS)

    late = train(tmp_path / "late", start, kind, "on", STEPS)

    assert differing(late, at_once) == []
    left_out = [event for event in late.journal() if event["kind"] == "update_skipped"]
    is_seen = left_out or (late.rows()["flags"] & ~at_once.rows()["flags"][0]).any()
    assert is_seen or (kind.clips and fault == "huge gradient")  # clipped, it is none
    if not kind.waits:
        assert late.waits[AT] == 0
        assert late.waits[-1] == 0


def test_several_updates_in_a_row_are_left_out_and_rolled_back_alike(
    tmp_path: Path, start: Start
) -> None:
    kind = Kind(faults=dict.fromkeys(range(AT, AT + 6), "nan loss"))
    at_once = train(tmp_path / "once", start, kind, "off", STEPS)

    late = train(tmp_path / "late", start, kind, "on", STEPS)

    assert differing(late, at_once) == []
    assert "rollback" in [event.get("name") for event in late.journal()]


def test_a_treatment_without_an_update_left_out_begins_one_step_later(
    tmp_path: Path, start: Start
) -> None:
    """The first of two differences."""
    kind = Kind(faults=dict.fromkeys(range(AT, STEPS), "another level"))
    at_once = train(tmp_path / "once", start, kind, "off", AT + 12)

    late = train(tmp_path / "late", start, kind, "on", AT + 12)

    first, other = (
        next(e for e in run.journal() if e["kind"] == "risk") for run in (late, at_once)
    )
    assert first == other
    assert first["step"] >= AT


def test_an_odd_batch_with_an_absurd_norm_loses_its_update(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second: that a batch is one of other data is found out on the host."""

    def judge(watch: Any, loss: float, observed: Any) -> dict[str, float]:
        return {SHIFT: 3.0, SCALE: 1.0} if loss > 1e5 else {}

    monkeypatch.setattr(step_recorder.InputWatch, "judge", judge)
    kind = Kind(faults={AT: "high loss"})
    at_once = train(tmp_path / "once", start, kind, "off", AT + 3)

    late = train(tmp_path / "late", start, kind, "on", AT + 3)

    assert not (at_once.rows()["flags"] & UPDATE_SKIPPED).any()
    assert (late.rows()["flags"] & UPDATE_SKIPPED).nonzero()[0].tolist() == [AT]


def test_a_norm_that_is_known_at_once_is_waited_for(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients on two devices, and those spread over ranks, are summed up on the host."""
    usual = step_recorder.norm_of_gradients
    known = lambda given: float(usual(given))  # noqa: E731
    monkeypatch.setattr(step_recorder, "norm_of_gradients", known)
    kind = Kind(faults={AT: "nan gradient"}, has_scaler=True)
    at_once = train(tmp_path / "once", start, kind, "off", AT + 10)

    late = train(tmp_path / "late", start, kind, "on", AT + 10)

    assert differing(late, at_once) == []


def test_running_statistics_that_a_nan_has_reached_are_healed_one_step_later(
    tmp_path: Path, start: Start
) -> None:
    """So the batch after it is not in them."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))

    kind = Kind(model=network, faults={AT: "nan input"})
    at_once = train(tmp_path / "once", start, kind, "off", AT + 10)

    late = train(tmp_path / "late", start, kind, "on", AT + 10)

    assert all(torch.isfinite(value).all() for value in late.state)
    skipped = [
        [e["step"] for e in r.journal() if e["kind"] == "update_skipped"] for r in (late, at_once)
    ]
    assert skipped == [[AT], [AT]]


def test_a_device_that_fails_when_it_is_read_does_not_end_the_training(
    tmp_path: Path, start: Start
) -> None:
    run = train(tmp_path / "run", start, KINDS["fused AdamW"], "on", CALM + 3, ends=False)
    late = run.worker.live._late._waiting
    assert late is not None

    def broken() -> list[float]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    late.numbers = type("Broken", (), {"read": staticmethod(broken), "becomes_older": int})()  # type: ignore[assignment]
    run.steps(3)
    run.stop()

    told = [event["message"] for event in run.journal() if event["kind"] == "warning"]
    assert any("device-side assert" in message for message in told)
    assert len(run.rows()) == CALM + 6


def test_a_torch_for_devices_trains_on_the_cpu_as_any_other(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = torch.accelerator.current_accelerator

    def built_for(check_available: bool = False) -> torch.device | None:
        return present(check_available=True) if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", built_for)
    kind = Kind(faults={AT: "nan loss"})
    off = train(tmp_path / "off", start, kind, "off", AT + 3)

    auto = train(tmp_path / "auto", start, kind, "auto", AT + 3)

    assert auto.session.has_late_steps
    assert differing(auto, off) == []
    assert sum(auto.waits) == 0  # nothing was on a device


class Reads(TorchDispatchMode):
    """Counts the values that are read out of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


PLAIN_SGD = Kind(build=fused(SGD, fused=False), waits=1.0)


@pytest.mark.parametrize(
    ("kind", "of_the_script"),
    [
        (KINDS["fused AdamW"], 0),
        (KINDS["fused with a scaler"], 0),
        (PLAIN_SGD, 0),
        (replace(PLAIN_SGD, has_scaler=True, waits=0.0), 1),
    ],
)
def test_a_calm_step_reads_no_value_out_of_a_tensor(
    tmp_path: Path, start: Start, kind: Kind, of_the_script: int
) -> None:
    """But torch's scaler asks whether all gradients are finite, unless the optimizer is fused."""
    reads = Reads()
    run = train(tmp_path / "run", start, kind, "on", CALM + 3, ends=False)
    before = READS.waits

    with reads:
        run.steps(20)

    assert reads.count == 20 * of_the_script
    assert READS.waits - before <= 20 * kind.waits


def test_a_number_that_is_read_early_raises_where_tests_want_that(
    tmp_path: Path, start: Start
) -> None:
    run = train(tmp_path / "run", start, KINDS["fused AdamW"], "on", CALM + 3, ends=False)
    READS.may_wait = False

    run.steps(20)

    late = run.worker.live._late._waiting
    assert late is not None
    with pytest.raises(AssertionError, match="step under way"):
        late.numbers.read()


# --- the flag ------------------------------------------------------------------------------------


def trained(kind: type[Optimizer], steps: int = 1, **settings: Any) -> Optimizer:
    weights = nn.Linear(3, 1)
    optimizer = kind(weights.parameters(), **{"lr": 0.1, **settings})
    for _ in range(steps):
        weights(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return optimizer


class Own(AdamW):
    """A step of its own may not know the flag."""


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (trained(Adam, fused=True), True),
        (trained(Adam, steps=0, fused=True), True),
        (trained(AdamW, fused=False), False),
        (trained(Own, fused=True), False),
        (trained(SGD, fused=True, momentum=0.9), True),
        (trained(SGD, steps=0, fused=True), True),
    ],
)
def test_who_takes_a_flag(optimizer: Optimizer, expected: bool) -> None:
    assert takes_flag(optimizer) is expected


def test_momentum_that_has_not_begun_takes_none() -> None:
    weights = nn.Linear(3, 1)
    optimizer = SGD(weights.parameters(), 0.1, momentum=0.9, fused=True)
    weights(torch.ones(2, 3)).sum().backward()

    assert not takes_flag(optimizer)
    optimizer.step()
    assert takes_flag(optimizer)


def test_a_group_that_is_not_fused_and_sparse_gradients_take_none() -> None:
    one, other = nn.Linear(3, 1), nn.Linear(3, 1)
    groups = [{"params": one.parameters(), "fused": True}, {"params": other.parameters()}]

    assert not takes_flag(AdamW(groups, 0.1))
    assert not takes_flag(SparseAdam(nn.Embedding(4, 2, sparse=True).parameters()))


@pytest.mark.parametrize("loss", [1.0, 50.0, math.nan, math.inf, None])
@pytest.mark.parametrize("norm", [1.0, 50.0, 1e300, math.nan, math.inf])
@pytest.mark.parametrize("limit", [NO_LIMIT, NormLimit(norm=10.0), NormLimit(norm=10.0, loss=5.0)])
@pytest.mark.parametrize("has_scaler", [False, True])
def test_the_flag_is_the_guards_rule(
    loss: float | None, norm: float, limit: NormLimit, has_scaler: bool
) -> None:
    known = None if loss is None else torch.tensor(loss, dtype=torch.float64)
    value = torch.tensor(norm, dtype=torch.float64)

    flag = is_bad(known, value, limit, has_scaler=has_scaler)

    is_high = loss is None or limit.loss == -math.inf or loss > limit.loss
    is_absurd = limit.norm < norm < math.inf and is_high
    is_nonfinite = loss is not None and not math.isfinite(loss)
    expected = is_nonfinite or is_absurd or (not has_scaler and not math.isfinite(norm))
    assert bool(flag) is expected


def test_two_flags_are_one(tmp_path: Path, start: Start) -> None:
    """Kernels ask for exactly 1: of 2 they would move the weights, and count the step back."""
    run = train(tmp_path / "run", start, Kind(build=fused(AdamW)), "on", CALM + 3, ends=False)
    optimizer, late = run.optimizers[0], run.worker.live._late
    theirs = torch.ones((), dtype=torch.float64)
    optimizer.found_inf = theirs  # type: ignore[attr-defined]

    late._set_flag(optimizer, torch.tensor(True))

    flag = optimizer.found_inf  # type: ignore[attr-defined]
    assert (flag.dtype, flag.shape, float(flag)) == (torch.float32, torch.Size([]), 1.0)
    late.update_ended()
    assert optimizer.found_inf is theirs  # type: ignore[attr-defined]


def test_no_flag_stays_behind_an_update_that_raises(tmp_path: Path, start: Start) -> None:
    run = train(tmp_path / "run", start, Kind(), "on", CALM + 3, ends=False)
    optimizer = run.optimizers[0]
    hooks = run.session.hooks.now
    run._backward("")

    hooks.before_update(optimizer, (), {})
    assert hasattr(optimizer, "found_inf")
    hooks.update_failed(optimizer)  # type: ignore[attr-defined]

    assert not hasattr(optimizer, "found_inf")
