from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.storage.files import file_system as aside
from supervisor.storage.files.file_system import FileSystem


def made(path: Path) -> Path:
    path.mkdir()
    return path


def test_what_this_process_stages_is_not_left_over(tmp_path: Path) -> None:
    one = made(aside.aside_path(tmp_path, aside.STAGED, 7))
    two = made(aside.aside_path(tmp_path, aside.STAGED, 7))

    assert one != two
    assert aside.kind_of(one.name) == aside.STAGED
    assert not aside.is_left_over(FileSystem(), one)


def test_what_a_dead_process_staged_is_left_over(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from supervisor.storage.files.file_system import *; "
        "path = aside_path(Path(sys.argv[1]), STAGED, 7); path.mkdir(); "
        "print(path); sys.stdout.flush(); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())

    while_alive = aside.is_left_over(FileSystem(), path)
    process.kill()
    process.communicate()

    assert not while_alive
    assert aside.is_left_over(FileSystem(), path)


def test_another_host_is_given_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(aside, "_HOST", "elsewhere")
        path = made(aside.aside_path(tmp_path, aside.STAGED, 7))

    young = aside.is_left_over(FileSystem(), path)
    os.utime(path, (0, 0))

    assert not young
    assert aside.is_left_over(FileSystem(), path)


@pytest.mark.parametrize("name", ["step_00000007", ".staged-7", ".mine", ".staged-a-b-c-d-e"])
def test_other_names_are_never_taken_for_ours(name: str, tmp_path: Path) -> None:
    assert aside.kind_of(name) is None
    assert not aside.is_left_over(FileSystem(), made(tmp_path / name))
