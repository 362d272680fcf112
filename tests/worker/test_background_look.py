from __future__ import annotations

import threading

import pytest

from supervisor.ladder.default_policy import default_policy
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings
from supervisor.testing import synthetic_run
from supervisor.worker.background_look import BackgroundLook


def test_what_another_thread_finds_is_what_this_one_would_have_found() -> None:
    records = list(synthetic_run("spike", 320))
    here, there = (Pipeline(RunSettings(), default_policy()) for _ in range(2))
    background = BackgroundLook(there.judge_ahead)

    for at in range(0, len(records), 16):
        background.give(records[at : at + 16])
        assert background.is_out
        found = background.take()
        for judgement in found:
            if not judgement.is_decided:
                there.decide_on(judgement)

        assert repr(found) == repr(list(here.update_all(records[at : at + 16])))


def test_nothing_is_decided_ahead_of_a_decision_that_was_not_carried_out() -> None:
    records = list(synthetic_run("spike", 300))
    pipeline = Pipeline(RunSettings(), default_policy())

    found = pipeline.judge_ahead(records)

    first = next(index for index, judgement in enumerate(found) if not judgement.is_quiet)
    assert all(judgement.is_decided for judgement in found[:first])
    assert not any(judgement.is_decided for judgement in found[first:])


def test_it_looks_on_a_thread_of_its_own_and_says_when_it_is_done() -> None:
    seen: list[str] = []
    may_end = threading.Event()

    def look(records: list[StepRecord]) -> list[Judgement]:
        may_end.wait(60)
        seen.append(threading.current_thread().name)
        return []

    background = BackgroundLook(look)
    background.give([StepRecord(step=1)])
    assert background.is_out
    assert not background.is_done
    may_end.set()

    assert background.take() == []
    assert seen == ["supervisor-look"]
    assert not background.is_out


def test_what_fails_there_is_raised_here_once() -> None:
    def look(records: list[StepRecord]) -> list[Judgement]:
        raise ValueError("no such thing")

    background = BackgroundLook(look)
    background.give([StepRecord(step=1)])

    with pytest.raises(ValueError, match="no such thing"):
        background.take()
    background.give([])
    with pytest.raises(ValueError, match="no such thing"):
        background.take()
