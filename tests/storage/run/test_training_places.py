"""Where in its code a script has trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.storage.run import training_places
from supervisor.storage.run.training_places import PlaceRecorder, read_places


class _Calls:
    """Forwards, without the frames of ours and torch's around them."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(training_places, "_TO_CALLER", 0)
        self._recorder = PlaceRecorder(path)

    def __call__(self) -> None:
        self._recorder.note()


def _train(calls: _Calls, times: int) -> None:
    for _ in range(times):
        _step(calls)


def _step(calls: _Calls) -> None:
    calls()


def _first_phase(calls: _Calls, times: int) -> None:
    _train(calls, times)


def _second_phase(calls: _Calls, times: int) -> None:
    _train(calls, times)


def _functions(path: Path) -> int:
    return len(read_places(path))


def test_a_place_is_noted_at_its_first_call_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank_0.places"
    calls = _Calls(path, monkeypatch)

    _first_phase(calls, 1)
    first = _functions(path)
    _first_phase(calls, 100)

    assert first == _functions(path) == 1


def test_one_that_differs_further_out_is_noted_after_some_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank_0.places"
    calls = _Calls(path, monkeypatch)

    _first_phase(calls, 1)
    _second_phase(calls, training_places._LOOKED_AT_AGAIN + 1)

    assert _functions(path) == 2


def test_known_calls_are_not_walked_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank_0.places"
    calls = _Calls(path, monkeypatch)
    walked = []
    look_at = PlaceRecorder._look_at
    monkeypatch.setattr(training_places, "_MOST_CODES", 0)  # each walk looks at all anew

    def counted(recorder: PlaceRecorder, code: object) -> int:
        walked.append(code)
        return look_at(recorder, code)  # type: ignore[arg-type]

    monkeypatch.setattr(PlaceRecorder, "_look_at", counted)

    _first_phase(calls, 1)
    once = len(walked)
    _train(calls, 1)
    walked.clear()
    _train(calls, training_places._LOOKED_AT_AGAIN - 2)

    assert once
    assert not walked
