"""Errors of ours stay ours: the failing part is switched off, and nothing else."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from supervisor.fault_injection.injector import InjectedFault
from supervisor.storage.journal.journal import Journal
from supervisor.worker.core.breakers import LIMIT, Breakers
from supervisor.worker.core.process_signs import ExitRequest
from tests.journals import read_raw


class Ward:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"
        self.turned_off = self.lose_replay = 0
        self.breakers = Breakers(
            Journal(self.path, attempt=1, rank=0), self._turn_off, self._break_tape
        )

    def _turn_off(self) -> None:
        self.turned_off += 1

    def _break_tape(self) -> None:
        self.lose_replay += 1

    def messages(self) -> list[str]:
        return [event["message"] for event in read_raw(self.path)]


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def test_who_waits_for_a_part_hears_once_that_it_is_off(tmp_path: Path) -> None:
    heard: list[str] = []
    breakers = Breakers(Journal(tmp_path / "e.jsonl", attempt=1, rank=0), _pass, _pass)
    part = breakers("checkpoints", when_off=lambda: heard.append("off"))

    for _ in range(LIMIT + 1):
        with breakers("checkpoints"):
            raise ValueError
    part.turn_off()

    assert heard == ["off"]


def _pass() -> None:
    pass


def test_a_part_that_fails_too_often_is_off_and_the_others_are_on(ward: Ward) -> None:
    part = ward.breakers("clipping")

    for _ in range(LIMIT + 2):
        with part:
            raise ValueError("no norm")

    assert not ward.breakers("clipping").is_on
    assert ward.breakers("batch").is_on
    assert (ward.turned_off, ward.lose_replay) == (0, 0)
    assert ward.messages() == [
        "supervisor: clipping failed: ValueError: no norm",
        f"clipping is switched off: clipping failed {LIMIT} times",
    ]


def test_without_an_essential_part_supervision_is_off(ward: Ward) -> None:
    part = ward.breakers("update", is_essential=True)

    for _ in range(LIMIT):
        part.caught(ValueError("no row"))

    assert ward.turned_off == 1
    assert ward.messages()[-1] == f"supervision is off: update failed {LIMIT} times"


def test_one_failure_of_what_a_replay_needs_makes_no_resume_exact(ward: Ward) -> None:
    with ward.breakers("batch", records=True):
        raise ValueError("no mark")

    assert ward.lose_replay == 1


def test_what_is_no_error_of_ours_passes(ward: Ward) -> None:
    with pytest.raises(InjectedFault), ward.breakers("forward"):
        raise InjectedFault("on purpose")
    with pytest.raises(KeyboardInterrupt), ward.breakers("forward"):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(ExitRequest), ward.breakers("forward"):
        raise ExitRequest("interrupted", "SIGTERM")
    assert ward.messages() == []
