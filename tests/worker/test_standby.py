"""A process that waits becomes a rank that sees what a fresh one would see, or begins anew."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.agent.standby import Standby
from supervisor.own_process import PARENT, STANDBY, worker_environment

PROGRAM = """
import json, os, sys
from supervisor.own_process import STANDBY, give_back
from supervisor.worker import standby

def import_it():
    import torch

waits = STANDBY in os.environ
if waits:
    standby._import = import_it
    standby.stand_by([sys.executable, *sys.argv])
give_back(os.environ)
hidden = [name for name in ("torch", "torch.nn", "beside") if name in sys.modules]
before = dict(os.environ)
sys.path.insert(0, "own")
{script}
import torch
here = [waits, torch.loads, hidden, "torch.nn" in sys.modules, os.getpid(), before]
with open("seen", "w") as file:
    json.dump(here, file)
"""


class Waiting:
    """A folder with a torch of its own, and a process in it that waits."""

    def __init__(self, folder: Path, script: str) -> None:
        for package in ("torch", "beside", "own"):
            (folder / package).mkdir()
        (folder / "torch" / "__init__.py").write_text(
            "import os, beside\nfrom torch import nn\nloads = os.environ['LOADED']"
        )
        (folder / "torch" / "nn.py").write_text("")
        (folder / "beside" / "__init__.py").write_text("")
        (folder / "rank.py").write_text(PROGRAM.replace("{script}", script))
        self.folder = folder
        self.environment = worker_environment(
            {**os.environ, PARENT: str(os.getpid()), "PYTHONPATH": f"{folder}:{os.getcwd()}"}
        )
        self.standby = Standby(
            [sys.executable, str(folder / "rank.py")], {**self.environment, "LOADED": "early"}
        )

    def seen(self) -> list[object]:
        """What the script sees as the rank that has died; what it has loaded, and when."""
        select.select([self.standby._socket], [], [], 60.0)
        rank = self.standby.become({**self.environment, "LOADED": "late", "RANK": "1"})
        assert rank is not None
        assert rank.wait(60.0) == 0
        found: list[object] = json.loads((self.folder / "seen").read_text())
        assert found[4] == rank.pid
        return found


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = os.getcwd()
    monkeypatch.setenv("PYTHONPATH", root)
    yield


def waiting(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = "") -> Waiting:
    made = Waiting(folder, script)
    return made


def test_it_has_torch_already_and_hides_it_until_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass
