"""Several nodes, for which two parents on one machine stand, are one training."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.scenarios.runs import QUICK, TIMEOUT_S, supervisor_command
from tests.scenarios.test_ranks import SCRIPT, torchrun

EVERY_8 = ("checkpoint.every_steps=8", "checkpoint.background=false")
SLOW = SCRIPT.replace("        schedule.step()\n", "        schedule.step(); slow()\n").replace(
    "means = []\n", "import time; slow = lambda: time.sleep(0.15)\nmeans = []\n"
)


class Nodes:
    """The parents of one run, started with the same command, in one folder."""

    def __init__(self, folder: Path, ranks: int, nnodes: str = "2", script: str = SCRIPT) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "script.py").write_text(script)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._options = ["--or-resume", "--nnodes", nnodes, "--nproc-per-node", str(ranks)]
        self._options += ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, name: str, *settings: str, run_dir: str = "run", conf: str = ""
    ) -> subprocess.Popen[bytes]:
        line = [*supervisor_command(), "run", "--run-dir", run_dir, *self._options]
        line += ["--rdzv-conf", conf] if conf else []
        for setting in (*QUICK, *EVERY_8, *settings):
            line += ["--set", setting]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "SUPERVISOR_CASES": str(self.folder / ".cases.sqlite"),
        }
        with open(self.folder / f"{name}.out", "ab") as output:
            parent = subprocess.Popen(
                [*line, "script.py"],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(parent)
        return parent

    def start_both(self, *settings: str) -> list[subprocess.Popen[bytes]]:
        first = self.start("first", *settings)
        self.await_text("first", "waiting at")
        return [first, self.start("second", *settings)]

    def await_text(self, name: str, text: str) -> None:
        self._await(lambda: text in self.output(name), f"{text!r} of {name}")

    def await_checkpoint(self, step: int) -> None:
        path = self.folder / f"run/checkpoints/step_{step:08d}"
        self._await(path.exists, f"{path}")

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def ends(self, world_size: int) -> list[str]:
        return [(self.folder / f"end_{rank}.txt").read_text() for rank in range(world_size)]

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "run/events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def close(self) -> None:
        for parent in self._started:
            if parent.poll() is None:
                parent.kill()
            parent.wait()

    def _await(self, holds: Any, what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, f"never came: {what}"
            time.sleep(0.05)


@pytest.fixture
def started() -> Iterator[list[Nodes]]:
    found: list[Nodes] = []
    yield found
    for nodes in found:
        nodes.close()


def codes(parents: list[subprocess.Popen[bytes]]) -> list[int]:
    return [parent.wait(TIMEOUT_S) for parent in parents]


def agent_of(parent: subprocess.Popen[bytes]) -> psutil.Process:
    for process in psutil.Process(parent.pid).children(recursive=True):
        line = " ".join(process.cmdline())
        if "supervisor.agent" in line and "subreaper.py" not in line:
            return process
    raise AssertionError("no agent")


def test_ranks_of_two_nodes_are_one_training(tmp_path: Path, started: list[Nodes]) -> None:
    expected = torchrun(tmp_path / "torchrun", 2)
    nodes = Nodes(tmp_path / "nodes", 1)
    started.append(nodes)

    ended = codes(nodes.start_both("faults=[{kind: sigkill, step: 21, rank: 1}]"))

    assert ended == [0, 0], nodes.output("first")
    assert nodes.ends(2) == expected
    assert [e["cause"] for e in nodes.events("worker_exited")] == ["killed", "completed"]
    assert nodes.events("worker_exited")[0]["evidence"][-1] == "rank 1 ended first of 2"
    resumed = [(e["from_step"], e["exactness"]) for e in nodes.events("resumed")]
    # Step 16 if both ranks had written it before the kill.
    assert resumed in ([(16, "exact")] * 2, [(8, "exact")] * 2)
    assert not [e for e in nodes.events("warning") if "only watched" in e["message"]]
    assert json.loads((nodes.folder / "run/run.json").read_text())["world_size"] == 2


@pytest.mark.exhaustive
def test_a_killed_rank_of_several_nodes_does_not_come_back_alone(
    tmp_path: Path, started: list[Nodes]
) -> None:
    expected = torchrun(tmp_path / "torchrun", 4)
    nodes = Nodes(tmp_path / "nodes", 2)
    started.append(nodes)
    fault = "faults=[{kind: sigkill, step: 21, rank: 3}]"

    ended = codes(nodes.start_both("restart.healing=on", "parting.every_steps=5", fault))

    assert ended == [0, 0], nodes.output("first")
    assert nodes.ends(4) == expected
    assert not nodes.events("healed")
    assert len(nodes.events("attempt_started")) == 2
    assert {e["exactness"] for e in nodes.events("resumed")} == {"exact"}
    told = [e["message"] for e in nodes.events("warning") if "restart.healing" in e["message"]]
    assert told == ["restart.healing: on several nodes a killed rank has all start again"]


@pytest.mark.exhaustive
def test_a_batch_of_one_rank_is_skipped_on_all_nodes(tmp_path: Path, started: list[Nodes]) -> None:
    nodes = Nodes(tmp_path, 2)
    started.append(nodes)

    ended = codes(nodes.start_both("faults=[{kind: nan_data, step: 9, rank: 3}]"))

    assert ended == [0, 0], nodes.output("first")
    skipped = [(e["rank"], e["step"]) for e in nodes.events("action") if e["outcome"] == "applied"]
    assert skipped == [(0, 9)]
    assert len({end.split()[0] for end in nodes.ends(4)}) == 1


@pytest.mark.exhaustive
def test_four_ranks_on_two_nodes_end_as_with_torchrun(tmp_path: Path, started: list[Nodes]) -> None:
    expected = torchrun(tmp_path / "torchrun", 4)
    nodes = Nodes(tmp_path / "nodes", 2)
    started.append(nodes)

    ended = codes(nodes.start_both("faults=[{kind: exception, step: 18, rank: 2}]"))

    assert ended == [0, 0], nodes.output("first")
    assert nodes.ends(4) == expected
    assert {e["exactness"] for e in nodes.events("resumed")} == {"exact"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["agent 0", "agent 1", "parent 0", "parent 1"])
def test_what_is_killed_comes_back_exactly(tmp_path: Path, started: list[Nodes], what: str) -> None:
    expected = torchrun(tmp_path / "torchrun", 2)
    nodes = Nodes(tmp_path / "nodes", 1, script=SLOW)
    started.append(nodes)
    parents = nodes.start_both()
    nodes.await_checkpoint(16)

    number = int(what[-1])
    if what.startswith("agent"):
        agent_of(parents[number]).kill()
    else:
        parents[number].kill()
        parents[number].wait()
        parents[number] = nodes.start(f"again_{number}")

    assert codes(parents) == [0, 0]
    assert nodes.ends(2) == expected
    assert {e["exactness"] for e in nodes.events("resumed")} == {"exact"}


@pytest.mark.exhaustive
def test_a_signal_to_any_parent_saves_all_nodes(tmp_path: Path, started: list[Nodes]) -> None:
    expected = torchrun(tmp_path / "torchrun", 2)
    nodes = Nodes(tmp_path / "nodes", 1, script=SLOW)
    started.append(nodes)
    parents = nodes.start_both()
    nodes.await_checkpoint(16)

    parents[1].send_signal(signal.SIGUSR1)

    assert codes(parents) == [75, 75]
    (exited,) = nodes.events("worker_exited")
    assert exited["cause"] == "preempted"
    assert codes([nodes.start("first again"), nodes.start("second again")]) == [0, 0]
    assert nodes.ends(2) == expected
    saved = {e["from_step"] for e in nodes.events("resumed")}
    assert saved == {exited["last_step"] + 1}


@pytest.mark.exhaustive
def test_a_node_that_sees_another_folder_is_refused(tmp_path: Path, started: list[Nodes]) -> None:
    nodes = Nodes(tmp_path, 1)
    started.append(nodes)
    first = nodes.start("first")
    nodes.await_text("first", "waiting at")

    refused = nodes.start("second", run_dir="elsewhere")

    assert refused.wait(TIMEOUT_S) == 64
    assert "does not see the same run directory" in nodes.output("second")
    nodes.await_text("first", "a node was refused")
    first.terminate()
    assert first.wait(TIMEOUT_S) == 128 + signal.SIGTERM


@pytest.mark.exhaustive
def test_where_a_node_is_gone_for_good_the_run_says_so(
    tmp_path: Path, started: list[Nodes]
) -> None:
    nodes = Nodes(tmp_path, 1, script=SLOW)
    started.append(nodes)
    first = nodes.start("first", conf="join_timeout=60")
    nodes.await_text("first", "waiting at")
    second = nodes.start("second")
    nodes.await_checkpoint(8)

    second.kill()

    assert first.wait(TIMEOUT_S) == 75
    assert "1 of 2 nodes are here after 60 s" in nodes.output("first")
    assert nodes.events("run_finished")[0]["state"] == "interrupted"


@pytest.mark.exhaustive
def test_what_is_left_goes_on_where_that_is_allowed(tmp_path: Path, started: list[Nodes]) -> None:
    nodes = Nodes(tmp_path, 1, nnodes="1:2", script=SLOW)
    started.append(nodes)
    first = nodes.start("first", conf="last_call_timeout=60")
    nodes.await_text("first", "waiting at")
    second = nodes.start("second")
    nodes.await_checkpoint(8)

    second.kill()
    second.wait()

    assert first.wait(TIMEOUT_S) == 0
    (resumed,) = nodes.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "2 -> 1 ranks" in resumed["reason"]
