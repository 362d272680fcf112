"""The newest state is kept in memory, and saved when the process ends before its time."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from supervisor.config import load_config
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.state import digest, read_state
from tests.worker.conftest import Start
from tests.worker.live_worker import CONFIG, LiveWorker

ALWAYS = ("checkpoint.every_steps=1000", "parting.every_steps=1")


def fails(live: LiveWorker) -> None:
    """The process ends, and not because the script has come to its end."""
    live._has_ended = True
    live.session.stop(completed=False, parts=True)


def newest(live: LiveWorker) -> Checkpoint | None:
    ring = CheckpointRing(live.rundir.checkpoints, load_config(overrides=CONFIG).checkpoint)
    return ring.newest_verified()


def test_what_a_failing_process_saves_is_the_checkpoint_of_its_last_boundary(
    tmp_path: Path, start: Start
) -> None:
    usual = start(tmp_path / "usual", ["checkpoint.every_steps=7"])
    usual.steps(8)  # the eighth passes the boundary of seven
    usual.stop()
    live = start(tmp_path / "run", ALWAYS)
    live.steps(8)
    with torch.no_grad():
        live.model.weight.mul_(0.5)

    fails(live)

    expected, found = newest(usual), newest(live)
    assert expected is not None
    assert found is not None
    assert (found.step, found.reason, found.stable) == (7, "parting", False)
    states = [read_state(each.path) for each in (expected, found)]
    for state in states:
        state.pop("census", None)  # holds how it was packed
    assert digest(states[0]) == digest(states[1])
    parts = {"tape_offset", "script_files", "pure_loading", "steps_recorded", "controls"}
    assert all(found.meta[part] == expected.meta[part] for part in parts)
    assert found.files.keys() == expected.files.keys()


def test_a_run_that_ends_as_it_should_saves_none(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run", ALWAYS)
    live.steps(8)

    live.stop()

    assert live.checkpoints() == []


def test_what_is_on_disk_already_is_not_saved_again(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run", ["checkpoint.every_steps=7", "parting.every_steps=1"])
    live.steps(8)

    fails(live)

    assert live.checkpoints() == [7]
    assert [event["reason"] for event in live.events("checkpoint_saved")] == ["interval"]


def test_it_is_kept_as_often_as_its_cost_allows(tmp_path: Path, start: Start) -> None:
    seldom = start(tmp_path / "seldom", [ALWAYS[0], "parting.max_overhead=1e-6"])
    often = start(tmp_path / "often", ALWAYS)
    for live in (seldom, often):
        live.steps(12)
        fails(live)

    assert (seldom.checkpoints(), often.checkpoints()) == ([2], [11])


def test_the_first_copy_of_a_large_state_waits_until_it_is_within_its_share(
    tmp_path: Path, start: Start
) -> None:
    small, large = (start(tmp_path / name, [ALWAYS[0]]) for name in ("small", "large"))
    capture = large.worker.capture
    assert capture.cost_s == large.worker.held.first_look_s
    large.worker.capture._cost_s = 60.0
    for live in (small, large):
        live.steps(12)
        fails(live)

    assert small.checkpoints() != []
    assert large.checkpoints() == []


def test_what_snapshots_have_spent_is_waited_for(tmp_path: Path, start: Start) -> None:
    early, late = (start(tmp_path / name, [ALWAYS[0]]) for name in ("early", "late"))
    late.worker.budget.spend(60.0, time.monotonic())
    for live in (early, late):
        live.steps(12)
        fails(live)

    assert early.checkpoints() != []
    assert late.checkpoints() == []


def test_what_a_checkpoint_took_to_gather_is_what_a_copy_will_cost(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run", ["checkpoint.every_steps=3", "parting.enabled=false"])
    live.steps(2)
    assert live.worker.capture.cost_s == live.worker.held.first_look_s > 0.0

    live.steps(3)

    assert live.worker.capture.cost_s != live.worker.held.first_look_s


def test_it_can_be_switched_off(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run", [*ALWAYS, "parting.enabled=false"])
    live.steps(8)

    fails(live)

    assert live.checkpoints() == []


def test_nothing_is_saved_as_healthy_after_trouble_or_a_loss_that_is_not_finite(
    tmp_path: Path, start: Start
) -> None:
    sick = start(tmp_path / "sick", ALWAYS)
    sick.steps(8)
    sick.worker.health.last_trouble_step = 7
    nan = start(tmp_path / "nan", ALWAYS)
    nan.steps(8)
    probe = nan.worker.progress.probe
    probe.loss, probe.loss_seen = float("nan"), True

    for live, why in ((sick, "the training was in trouble"), (nan, "the loss was not finite")):
        fails(live)

        assert live.checkpoints() == []
        told = [event["message"] for event in live.events("warning")]
        assert told == [f"the state of step 7 is not saved as the process ends: {why}"]


def test_trouble_that_is_over_does_not_bring_back_a_state_from_before_it(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run", ["checkpoint.every_steps=1000", "parting.every_steps=10"])
    live.steps(15)
    live.worker.health.last_trouble_step = 12
    live.steps(40)
    fails(live)

    assert live.checkpoints() == [50]  # 20 and 30 were too near to it

    other = start(tmp_path / "other", ["checkpoint.every_steps=1000", "parting.every_steps=100"])
    other.steps(105)
    other.worker.health.last_trouble_step = 102
    other.steps(60)
    fails(other)

    assert other.checkpoints() == []


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run", ALWAYS)
    live.steps(7)
    with torch.no_grad():
        live.model.weight[0, 0] = float("inf")  # in no loss yet
    batch = torch.zeros(8, 4)
    live.session.hooks.now.forward(live.model, (batch,), {}, lambda: live.model(batch))

    fails(live)

    assert live.checkpoints() == []
    assert "not finite" in live.events("warning")[-1]["message"]


def test_a_mark_on_the_tape_moves_with_what_is_put_before_it(tmp_path: Path) -> None:
    replay_log = ReplayLogWriter(tmp_path / "a.tape")
    replay_log.append(1, b"first")
    early = replay_log.offset
    replay_log.append(1, b"second")

    replay_log.mark()
    replay_log.append(2, b"later")
    replay_log.insert(early, 3, b"between")
    replay_log.insert(replay_log.offset, 3, b"behind")
    offset = replay_log.write_out_to_mark()
    replay_log.close()

    reader = ReplayLogReader(tmp_path / "a.tape", end=offset)
    assert [reader.take(kind) for kind in (1, 3, 1)] == [b"first", b"between", b"second"]
    assert not reader.peek()
    reader.close()


def test_what_a_replay_to_the_mark_needs_is_put_on_the_tape_before_it(tmp_path: Path) -> None:
    replay_log = ReplayLogWriter(tmp_path / "a.tape")
    replay_log.before_marking = lambda: replay_log.append(5, b"drawn")

    replay_log.mark()

    assert replay_log.write_out_to_mark() == replay_log.offset > 0
    replay_log.close()
