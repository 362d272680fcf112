"""What the live page's server answers, and to whom."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from supervisor.cli.serve.server import LOOPBACK, LiveServer, is_loopback
from supervisor.errors import UsageError
from supervisor.records import StepRecord
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.report import synthetic_run

HOSTILE = "<img src=x onerror=alert(1)>"


@contextlib.contextmanager
def serving(path: Path, **options: str) -> Iterator[LiveServer]:
    with LiveServer(path, host=LOOPBACK, port=0, **options) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.ending.set()
        server.shutdown()


def get(server: LiveServer, path: str, token: str | None = None) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=30)
    joint = "&" if "?" in path else "?"
    connection.request("GET", f"{path}{joint}token={server.token if token is None else token}")
    answer = connection.getresponse()
    with contextlib.closing(connection):
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def first_message(server: LiveServer, path: str) -> dict[str, object]:
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", f"{path}?token={server.token}")
        line = connection.getresponse().readline().decode()
        found: dict[str, object] = json.loads(line.removeprefix("data: "))
        return found


def test_nothing_is_answered_without_the_token(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with serving(root) as server:
        for path in ("/", "/api/state", "/api/events", "/api/curves", "/api/runs"):
            for token in ("", "wrong", "é"):
                status, _, text = get(server, path, quote(token))
                assert (status, "token" in text) == (403, True), path
        assert get(server, "/")[0] == 200
        assert server.token in server.url


def test_the_page_runs_only_our_own_script_and_holds_nothing_of_the_run(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "secret_name")
    with serving(root) as server:
        status, headers, page = get(server, "/")

    assert status == 200
    policy = headers["Content-Security-Policy"]
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert page.count(f'<script nonce="{nonce}">') == page.count("<script") == 1
    assert "default-src 'none'" in policy
    assert headers["Cache-Control"] == "no-store"
    assert "secret_name" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_state_and_curves_of_a_finished_run(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with serving(root) as server:
        state = json.loads(get(server, "/api/state")[2])
        streamed = first_message(server, "/api/events")
        curves = json.loads(get(server, "/api/curves")[2])
        norms = quote(json.dumps(["grad_norm"]))
        some = json.loads(get(server, f"/api/curves?names={norms}&from=5&to=9")[2])

    assert state["ended"]
    assert state["title"] == streamed["title"] == "run"
    assert state["facts"]["step"]
    assert state["events"][0]["text"] == "The run was started."
    assert curves["curves"]["loss"][0]["x"]
    assert list(some["curves"]) == ["grad_norm"]
    assert some["curves"]["grad_norm"][0]["x"] == [5, 6, 7, 8, 9]


def test_a_completed_run_with_a_mistake_is_not_green(tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 60)
    run.event("alert", step=5, severity="high", category="mistake", alert_kind="stretched_loss",
              message="long", fact="train.py:3: stretched")  # fmt: skip
    run.exit("completed", 60, returncode=0)
    with serving(run.finish("completed")) as server:
        state = json.loads(get(server, "/api/state")[2])

    assert state["tone"] == "warn"
    assert state["shortfalls"] == ["Mistake in the script, seen at step 5: train.py:3: stretched."]


def test_questions_that_make_no_sense_are_told_so(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with serving(root) as server:
        assert get(server, "/nothing")[0] == 404
        for query in ("from=x", "names=x", "names=7", "names=" + "[" * 5000):
            assert get(server, f"/api/curves?{query}")[0] == 400, query
        assert get(server, "/api/curves?names=[[1]]&from=nan&to=nan")[0] == 200


def test_a_folder_shows_its_runs_and_nothing_beside_it(tmp_path: Path) -> None:
    synthetic_run.treated(tmp_path / "beside")
    synthetic_run.treated(tmp_path / "runs" / "one")
    synthetic_run.treated(tmp_path / "runs" / HOSTILE)
    (tmp_path / "runs" / "nothing").mkdir()
    with serving(tmp_path / "runs") as server:
        runs = json.loads(get(server, "/api/runs")[2])
        assert {run["name"] for run in runs["runs"]} == {"one", HOSTILE}
        assert get(server, "/api/state?run=one")[0] == 200
        for name in ("../beside", "nothing", "", ".", "/", "one/../one"):
            assert get(server, f"/api/state?run={quote(name, safe='')}")[0] == 404, name


def test_a_sick_run_in_the_list_is_strict_json(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "runs" / "one")
    recorder = FlightRecorder(RunDirectory(root).steps(0), 9)
    recorder.append(StepRecord(step=10**6, loss=math.nan, loss_seen=True), time=0.0)
    recorder.close()
    with serving(tmp_path / "runs") as server:
        (run,) = json.loads(get(server, "/api/runs")[2])["runs"]

    assert run["last_loss"] is None
    assert run["verdict"].endswith("sick")


def test_steps_that_come_are_served(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with serving(root) as server:
        before = json.loads(get(server, "/api/curves")[2])["steps"][1]
        recorder = FlightRecorder(RunDirectory(root).steps(0), 9)
        recorder.append(StepRecord(step=before + 1, loss=1.0, loss_seen=True), time=0.0)
        recorder.close()
        assert json.loads(get(server, "/api/curves")[2])["steps"][1] == before + 1


def test_damaged_steps_are_told_and_do_not_end_the_server(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    RunDirectory(root).steps(0).write_bytes(b"something else entirely" * 10)
    with serving(root) as server:
        status, _, text = get(server, "/api/curves")
        assert (status, "not a flight recorder" in text) == (503, True)
        state = json.loads(get(server, "/api/state")[2])
        assert "not a flight recorder" in state["state"]
        assert state["events"]


def test_others_are_let_in_only_with_a_token_of_the_users(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with pytest.raises(UsageError, match="give a --token"):
        LiveServer(root, host="0.0.0.0", port=0)
    with LiveServer(root, host="0.0.0.0", port=0, token="mine") as server:
        assert server.token == "mine"
    assert [is_loopback(host) for host in ("localhost", "127.0.0.7", "::1", "10.0.0.1", "x")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with (
        LiveServer(root, host=LOOPBACK, port=0) as server,
        pytest.raises(UsageError, match="give another --port"),
    ):
        LiveServer(root, host=LOOPBACK, port=server.server_port)


def test_each_of_several_ranks_has_a_lane(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    rundir = RunDirectory(root)
    write_json(rundir.run_json, {**json.loads(rundir.run_json.read_text()), "world_size": 3})
    with FlightReader(rundir.steps(0)) as reader:
        end_s = reader.last_time() or 0.0
    recorder = FlightRecorder(rundir.steps(1), 1)
    for step in range(40):  # stands since 30 s
        record = StepRecord(step=step, loss=1.0, loss_seen=True, step_time_s=0.5)
        recorder.append(record, time=end_s - 30.5 - (39 - step) * 0.5)
    recorder.close()

    with serving(root) as server:
        first, other = json.loads(get(server, "/api/state")[2])["ranks"]

    assert (first["rank"], other["rank"], other["step"], other["step_ms"]) == (0, 1, 39, 500.0)
    assert len(first["lane"]) == len(other["lane"]) == 60
    assert first["lane"][-1] > 0
    assert other["lane"][-30:] == [0] * 30
    assert sum(other["lane"]) == 40
