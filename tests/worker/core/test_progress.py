"""What the user is told where the recording of a run comes to a limit."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from supervisor.ranks import FIRST_RANK
from supervisor.storage.journal.journal import Journal
from supervisor.worker.core.progress import (
    AutocastContext,
    Progress,
    RecordingLimits,
    RunWarnings,
    refuse_fsdp1,
)
from supervisor.worker.core.step_probe import StepProbe
from tests.journals import read_raw


class Limits:
    """Those of a run that has made seven steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = Progress(StepProbe(), steps_done=7)
        self.tell = RecordingLimits(
            self.progress, RunWarnings(Journal(path, attempt=1, rank=FIRST_RANK), self.progress)
        )

    @property
    def told(self) -> list[str]:
        return [str(event["message"]) for event in read_raw(self.path)]


@pytest.fixture
def limits(tmp_path: Path) -> Limits:
    return Limits(tmp_path / "journal.jsonl")


def test_a_full_tape_makes_later_resumes_approximate(limits: Limits) -> None:
    limits.tell.replay_log_full("the budget is used up")

    assert not limits.progress.can_replay
    assert limits.told == [
        "what a resume must know is no longer recorded from step 7 on: the budget is used up: "
        "later resumes are approximate"
    ]


def test_a_full_tape_of_a_run_that_will_not_resume_exactly_is_not_told(limits: Limits) -> None:
    limits.progress.lose_replay("a part has failed")

    limits.tell.replay_log_full("the budget is used up")

    assert limits.told == []


def test_who_observes_too_much_is_told_what_to_do(limits: Limits) -> None:
    limits.tell.value_left_out("layer_9")
    limits.tell.values_thinned(4)

    assert "'layer_9'" in limits.told[0]
    assert "give values fewer names" in limits.told[0]
    assert "every 4th step" in limits.told[1]
    assert "raise observed_max_gib" in limits.told[1]


def test_a_context_of_one_step_has_no_casts_of_earlier_weights() -> None:
    context = AutocastContext()
    outside = context.has_older_casts(3)
    context.enters(3)
    with torch.autocast("cpu", torch.bfloat16):
        within = context.has_older_casts(3)

    assert (outside, within, context.has_older_casts(4)) == (False, False, False)


def test_a_context_around_several_steps_keeps_them_also_within_another_one() -> None:
    context = AutocastContext()
    context.enters(3)
    with torch.autocast("cpu", torch.bfloat16):
        context.enters(4)
        with torch.autocast("cpu", enabled=False):
            found = context.has_older_casts(4)
        kept = torch.is_autocast_cache_enabled()

    assert kept
    assert found


def test_without_a_cache_there_are_none() -> None:
    context = AutocastContext()
    context.enters(0)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert not context.has_older_casts(2)


def test_autocast_that_is_switched_on_without_a_context_keeps_them_for_ever() -> None:
    context = AutocastContext()
    before = context.has_older_casts(2)
    torch.set_autocast_enabled("cpu", True)
    try:
        assert context.has_older_casts(2)
        assert not context.has_older_casts(0)
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()
    assert not before


class Flat(nn.Module):
    pass


def test_fsdp1_is_refused_with_a_way_out_wherever_it_lies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "torch.distributed.fsdp.fully_sharded_data_parallel"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(FullyShardedDataParallel=Flat))

    refuse_fsdp1(nn.Sequential(nn.Linear(1, 1)))
    with pytest.raises(SystemExit) as ended:
        refuse_fsdp1(nn.Sequential(Flat()))

    assert ended.value.code == 64
    assert "fully_shard" in capsys.readouterr().err
