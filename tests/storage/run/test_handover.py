"""What ranks leave in the parent's memory outlives them, whatever the disk does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.storage.files.kept_writes import KEPT, KeptWrite
from supervisor.storage.run import handover
from supervisor.storage.run.exit_notes import ExitNote, load_exit_note, note_of, save_exit_note
from supervisor.storage.run.handover import Handover, OwnPlace
from supervisor.storage.run.rundir import RunDirectory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs nameless files")

DIES = """
import json, os, resource, signal, sys
from supervisor.storage.run.handover import OwnPlace
place = OwnPlace(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
for _ in range(3): place.lives()
place.refuses("run.json: File too large")
if sys.argv[2:]: place.ends({"kind": sys.argv[2]}, [])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("note", ["", "completed"])
def test_a_killed_rank_under_a_limit_of_file_sizes_has_left_what_it_left(note: str) -> None:
    places = Handover(2)
    subprocess.run(
        [sys.executable, "-c", DIES, places.paths[1], *filter(None, [note])], check=False
    )

    left = places.left_by(1)
    lives = [places.signs_of_life(rank) for rank in (0, 1, 2)]
    places.clear()

    assert lives == [0, 3, 0]
    assert left.note == ({"kind": "completed"} if note else None)
    assert left.refused == ("" if note else "run.json: File too large")
    assert places.left_by(1) == places.left_by(0) == places.left_by(7)
    places.close()


def test_an_exit_note_and_the_lines_that_a_full_disk_refuses_reach_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(write: KeptWrite) -> None:
        raise OSError(28, "No space left on device", str(write.path))

    places, rundir = Handover(1), RunDirectory(tmp_path)
    monkeypatch.setattr(handover, "mine", OwnPlace(places.paths[0]))
    note = ExitNote(kind="completed", code=0, last_step=59)
    with monkeypatch.context() as full:
        full.setattr(KeptWrite, "make", refuse)
        save_exit_note(rundir, 1, 0, note)
        (write,) = places.left_by(0).writes
        KEPT.forget(write.path)

    before = load_exit_note(rundir, 1, 0)
    KEPT.add(write)

    assert note_of(places.left_by(0).note) == note
    assert (before, load_exit_note(rundir, 1, 0)) == (None, note)
    places.close()


def test_more_than_there_is_room_for_costs_the_files_and_not_the_note(tmp_path: Path) -> None:
    places = Handover(1)
    much = KeptWrite(path=tmp_path / "log", data=bytes(80 << 20))

    OwnPlace(places.paths[0]).ends({"kind": "completed"}, [much])

    assert places.left_by(0) == handover.Left(note={"kind": "completed"}, writes=[])
    places.close()


def test_a_damaged_note_is_none() -> None:
    assert note_of(None) is note_of({"kind": 3}) is None


def test_a_low_limit_for_the_size_of_files_leaves_room_for_a_note_alone() -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from pathlib import Path\n"
        "from supervisor.storage.files.kept_writes import KeptWrite\n"
        "from supervisor.storage.run.handover import Handover, OwnPlace\n"
        "handover = Handover(1)\n"
        "place = OwnPlace(handover.paths[0])\n"
        "place.lives()\n"
        "place.ends({'kind': 'completed'}, [KeptWrite(path=Path('f'), at=0, data=bytes(5000))])\n"
        "left = handover.left_by(0)\n"
        "assert handover.signs_of_life(0) == 1\n"
        "assert (left.note, list(left.writes)) == ({'kind': 'completed'}, [])\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
