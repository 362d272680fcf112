"""A process that waits becomes a rank that sees what a fresh one would see, or begins anew."""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

import pytest

from supervisor.agent.standby import Standby
from supervisor.own_process import PARENT, worker_environment

ROOT = Path(__file__).parents[2]
RANK = """
import json, os, sys
from supervisor.own_process import STANDBY, give_back
from supervisor.worker import standby

standby._import = lambda: __import__("torch")
waited = STANDBY in os.environ
if waited:
    standby.stand_by([sys.executable, *sys.argv])
give_back(os.environ)
hidden = not {"torch", "torch.nn", "beside"} & sys.modules.keys()
SCRIPT
import torch
with open("seen", "w") as file:
    json.dump([waited, hidden, "torch.nn" in sys.modules, torch.loaded, dict(os.environ)], file)
"""
"""Has a torch that says with which environment it was loaded."""


class Waiting:
    def __init__(self, folder: Path, script: str = "", torch: str = "") -> None:
        for package in ("torch", "beside", "own"):
            (folder / package).mkdir()
        (folder / "torch" / "__init__.py").write_text(
            "import os, beside\nfrom torch import nn\nloaded = os.environ.get('RANK')\n" + torch
        )
        (folder / "torch" / "nn.py").write_text("")
        (folder / "beside" / "__init__.py").write_text("")
        (folder / "own" / "beside.py").write_text("")
        (folder / "rank.py").write_text(RANK.replace("SCRIPT", script))
        self.folder = folder
        paths = os.pathsep.join([str(folder), str(ROOT)])
        users = {**os.environ, PARENT: str(os.getpid()), "PYTHONPATH": paths}
        self.environment = worker_environment(users)
        line = [sys.executable, "rank.py"]
        self.standby = Standby(line, {**self.environment, "RANK": "0"})

    def become(self) -> list[object]:
        """Returns what the script saw as rank 1: whether it is the process that has waited, whether
        torch was hidden until it imported it, whether all of torch was there then, as which rank it
        was loaded, and the environment."""
        select.select([self.standby._socket], [], [], 60.0)
        process = self.standby.become({**self.environment, "RANK": "1"})
        assert process is not None
        assert process.wait(60.0) == 0
        found: list[object] = json.loads((self.folder / "seen").read_text())
        return found


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_has_torch_already_and_hides_it_until_the_script_imports_it(tmp_path: Path) -> None:
    *seen, environment = Waiting(tmp_path).become()
    fresh = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]), RANK="1")

    assert seen == [True, True, True, "0"]
    assert environment == fresh


@pytest.mark.parametrize(
    "script",
    [
        "os.environ['OMP_NUM_THREADS'] = '3'",
        "sys.path.insert(0, 'own')",
        "import numpy; numpy.random.rand()",
        "sys.meta_path.append(sys.meta_path[-1])",
        "os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])",
    ],
)
def test_a_script_that_could_make_another_import_of_it_begins_anew(
    tmp_path: Path, script: str
) -> None:
    if "affinity" in script and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one processor")

    waited, _, _, rank, _ = Waiting(tmp_path, script).become()

    assert (waited, rank) == (False, "1")


def test_filters_of_warnings_come_when_torch_comes(tmp_path: Path) -> None:
    script = "import warnings; before = len(warnings.filters); import torch\n"
    script += "torch.loaded = [before, [each[0] for each in warnings.filters]]"
    made = Waiting(tmp_path, script, torch="import warnings; warnings.simplefilter('error')")

    before, after = made.become()[3]  # type: ignore[misc]

    assert "error" not in after[1:]
    assert (after[0], len(after)) == ("error", before + 1)


def test_one_that_is_not_ready_becomes_nothing() -> None:
    silent = Standby([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)

    assert silent.become({}) is None
    silent.end()
    assert silent._process.returncode


def test_it_ends_where_its_agent_has_gone(tmp_path: Path) -> None:
    made = Waiting(tmp_path)
    select.select([made.standby._socket], [], [], 60.0)

    made.standby._socket.close()

    assert made.standby._process.wait(60.0) == 0
