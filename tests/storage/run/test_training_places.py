"""Where in its code a script has trained."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.run.training_places import PlaceRecorder, read_places


class _Calls:
    """Forwards, without the frames of ours and torch's around them."""

    def __init__(self, path: Path) -> None:
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


def test_a_place_is_noted_at_its_first_call_and_once(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.places"
    calls = _Calls(path)

    _first_phase(calls, 1)
    first = _functions(path)
    _first_phase(calls, 100)

    assert first == _functions(path) == 1


def test_one_that_differs_further_out_is_another(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.places"
    calls = _Calls(path)

    _first_phase(calls, 1)
    _second_phase(calls, 1)

    assert _functions(path) == 2
