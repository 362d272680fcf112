"""Notices that the machine will be taken."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.errors import UsageError
from supervisor.parent.process.signals import signal_numbers
from supervisor.parent.watching.preemption import PreemptionWatch
from supervisor.settings import PreemptionSettings


def until_told(watch: PreemptionWatch, seconds: float = 60.0) -> str | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        told = watch.look()
        if told is not None:
            return told
        time.sleep(0.02)
    return None


def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    watch = PreemptionWatch(PreemptionSettings(watch=f"file:{path}", every_s=0.01), {})
    assert watch.look() is None

    path.touch()

    assert str(path) in (until_told(watch) or "")


def test_a_command_is_a_notice_from_when_it_ends_with_0(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    line = f"cat {path} | grep -q TRUE"
    watch = PreemptionWatch(PreemptionSettings(watch=line, every_s=0.01), {})
    path.write_text("FALSE")
    assert until_told(watch, 0.5) is None

    path.write_text("TRUE")

    assert line in (until_told(watch) or "")


def test_a_command_that_hangs_is_never_waited_for_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.parent.watching.preemption.SLOWEST_S", 0.3)
    seen = tmp_path / "seen"
    line = f"test -e {seen} || {{ touch {seen}; sleep 600; }}"
    watch = PreemptionWatch(PreemptionSettings(watch=line, every_s=0.01), {})

    assert watch.look() is None
    assert watch.look() is None
    assert until_told(watch) is not None


def test_the_time_limit_of_slurm_is_a_notice_before_it() -> None:
    settings = PreemptionSettings(leave_before_s=60)

    def told(ends_in_s: float) -> str | None:
        ends_at = str(int(time.time() + ends_in_s))
        return PreemptionWatch(settings, {"SLURM_JOB_END_TIME": ends_at}).look()

    assert told(3600) is None
    assert "time ends" in (told(50) or "")
    assert PreemptionWatch(settings, {"SLURM_JOB_END_TIME": "Unknown"}).look() is None


@pytest.mark.parametrize("name", ["SIGKILL", "SIGFOO", "15"])
def test_a_signal_that_cannot_ask_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"preemption\.signals: {name}"):
        signal_numbers(["SIGTERM", name])
