from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

import supervisor
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


def test_our_own_code_is_known_behind_a_link(tmp_path: Path) -> None:
    """Of an editable install, or a home folder that is a link to another disk."""
    link = tmp_path / "link"
    link.symlink_to(Path(supervisor.__file__).parents[1])
    text = (
        f"import sys; sys.path.insert(0, {str(link)!r})\n"
        "from supervisor.training_state.census import inside_process\n"
        "assert inside_process.__file__.startswith(inside_process._OURS), inside_process._OURS\n"
    )

    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
