"""Each look into this interpreter finds what is known to be there; where one does not, no resume is
called exact. Runs on every version (docs/versions.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.records import WorkerOrder
from supervisor.worker.script_state import start_probe
from supervisor.worker.script_state.start_probe import LOOKS, blind_looks
from tests.worker.conftest import Start


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    blind_looks.cache_clear()
    yield
    blind_looks.cache_clear()


@pytest.mark.parametrize("name", LOOKS)
def test_this_interpreter_shows(name: str) -> None:
    assert LOOKS[name]()


def test_a_stack_that_is_laid_out_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.worker.script_state.user_frames._words", lambda at, count: ())

    (why,) = blind_looks()

    assert "nobody can see what loops, contexts and comprehensions hold on the stack" in why


def test_generators_that_tell_the_collector_nothing_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_probe, "held_by", lambda generator: [])

    (why,) = blind_looks()

    assert "what a waiting generator holds in no variable" in why


def test_a_resume_whose_process_is_blind_is_approximate_and_says_to_what(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = start(tmp_path / "run")
    killed.steps(25)
    killed.stop()
    saved = killed.checkpoints()[-1]
    monkeypatch.setitem(LOOKS, "what closures hold", lambda: False)

    resumed = start(tmp_path / "run", order=WorkerOrder(attempt=2, checkpoint_step=saved))
    resumed.steps(saved + 1)

    (event,) = resumed.events("resumed")
    assert event["exactness"] == "approximate"
    assert "nobody can see what closures hold" in event["reason"]
