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
