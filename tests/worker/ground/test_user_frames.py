from __future__ import annotations

import sys
import types

import pytest

from supervisor.worker.ground.user_frames import user_frames


class Lazy(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        raise ImportError(f"{name} would need a package that is not here")


def test_a_lazy_module_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lazy_for_a_test", Lazy("lazy_for_a_test"))

    frames = user_frames()

    assert "main" in frames
    assert "lazy_for_a_test" not in frames


def test_the_main_module_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__="/somewhere/script.py", loss=0.5)
    for name in ("__main__", "__mp_main__"):  # as `multiprocessing` leaves it
        monkeypatch.setitem(sys.modules, name, main)

    frames = user_frames()

    assert frames["main"] is main.__dict__
    assert "__mp_main__" not in frames
