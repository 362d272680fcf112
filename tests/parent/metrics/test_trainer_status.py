"""What Kubeflow Trainer's endpoint is told, against a stand-in that checks the documented rules."""

from __future__ import annotations

import json
import math
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.own_process import KUBEFLOW_URL
from supervisor.parent.metrics.metrics import Metrics
from supervisor.parent.metrics.run_figures import RunFigures
from supervisor.parent.metrics.trainer_status import (
    CA_CERT,
    OFF,
    TOKEN,
    TrainerStatus,
    is_asked,
    status_of,
)
from supervisor.records import CrashRisk, StepRecord
from supervisor.worker.process.own_reports import reporter
from tests.journals import event
from tests.parent.metrics.test_metrics import spec_of, wait_for


class Trainer(HTTPServer):
    """Answers as `pkg/statusserver` of Kubeflow Trainer does; keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.token = "first"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()


class _Answer(BaseHTTPRequestHandler):
    server: Trainer

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        token = self.headers["Authorization"]
        code = 403 if token != f"Bearer {self.server.token}" else 200
        try:
            status = json.loads(data)["trainerStatus"]
            check(status)
        except (ValueError, KeyError, AssertionError):
            code = 422
        if code == 200:
            self.server.told.append((token, status))
        self.send_response(code)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def check(status: dict[str, Any]) -> None:
    """The rules of its `TrainerStatus`."""
    assert datetime.fromisoformat(status["lastUpdatedTime"].replace("Z", "+00:00")).tzinfo
    assert set(status) <= {
        *("progressPercentage", "estimatedRemainingSeconds", "metrics", "lastUpdatedTime")
    }
    for name, most in (("progressPercentage", 100), ("estimatedRemainingSeconds", 2**31 - 1)):
        assert type(status.get(name, 0)) is int
        assert 0 <= status.get(name, 0) <= most
    for metric in status["metrics"]:
        assert all(isinstance(metric[key], str) and 1 <= len(metric[key]) <= 64 for key in metric)
        assert set(metric) == {"name", "value"}


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    server = Trainer()
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setenv(KUBEFLOW_URL, f"http://127.0.0.1:{server.server_address[1]}/status")
    monkeypatch.setenv(TOKEN, str(tmp_path / "token"))
    monkeypatch.delenv(CA_CERT, raising=False)
    monkeypatch.delenv(OFF, raising=False)
    yield server
    server.shutdown()
    server.server_close()


def metrics_of(status: dict[str, Any]) -> dict[str, str]:
    return {metric["name"]: metric["value"] for metric in status["metrics"]}


def test_a_run_is_told_with_its_progress_and_its_end(tmp_path: Path, trainer: Trainer) -> None:
    metrics = Metrics(spec := spec_of(tmp_path), spec.settings)
    metrics._reporters[-1]._every_s = 0.01
    record = StepRecord(
        step=249, loss=2.5, loss_seen=True, step_time_s=0.2, observed={"total_steps": 1000.0}
    )

    metrics.saw([event("attempt_started")], attempt=1)
    metrics.stepped([record], CrashRisk(step=249, probability=0.125))
    wait_for(lambda: bool(trainer.told) and "step" in metrics_of(trainer.told[-1][1]))
    _, going_on = trainer.told[-1]
    metrics.saw([event("run_finished", state="completed")], attempt=1)
    problems = metrics.close()

    assert problems == []
    assert (going_on["progressPercentage"], going_on["estimatedRemainingSeconds"]) == (25, 150)
    assert metrics_of(going_on) == {
        **{"state": "running", "step": "249", "loss": "2.5", "risk": "0.125"},
    }
    _, last = trainer.told[-1]
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    assert metrics_of(last)["state"] == "completed"


def test_the_token_is_read_each_time_and_a_refusal_is_told_once(
    tmp_path: Path, trainer: Trainer
) -> None:
    status = TrainerStatus(os.environ, lambda: status_of([], "running", math.nan), every_s=0.01)
    status.start()
    wait_for(lambda: len(trainer.told) > 1)
    refused: list[str] = []
    trainer.token = "second"

    def was_refused() -> bool:
        refused.extend(filter(None, [status.problem()]))
        return bool(refused)

    wait_for(was_refused)
    (tmp_path / "token").write_text("second")
    wait_for(lambda: trainer.told[-1][0] == "Bearer second")
    status.close()

    assert "HTTP Error 403" in refused[0]
    assert len(refused) == 1


def test_reports_are_never_closer_than_the_rule_allows(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    status = TrainerStatus(os.environ, lambda: {"trainerStatus": {}}, every_s=0.05)
    monkeypatch.setattr(status, "_post", lambda _: times.append(time.monotonic()))

    status.start()
    wait_for(lambda: len(times) > 2)
    status.close()

    assert min(b - a for a, b in pairwise(times)) > 0.045


def test_what_is_unknown_is_left_out_and_what_is_odd_fits_the_rules() -> None:
    figures = RunFigures("a", "train.py")
    check(told := status_of(figures.metrics(), "running", math.nan)["trainerStatus"])
    assert "progressPercentage" not in told

    figures.stepped([StepRecord(step=10**9, loss=math.nan, loss_seen=True)], None)
    check(told := status_of(figures.metrics(), "gave_up", 10.0)["trainerStatus"])
    assert told["progressPercentage"] == 99
    assert metrics_of(told)["loss"] == "nan"
    for total in (math.inf, -1.0, 1e300, 5.0):
        check(status_of(figures.metrics(), "running", total)["trainerStatus"])


def test_nobody_reports_twice(tmp_path: Path, trainer: Trainer) -> None:
    metrics = Metrics(spec := spec_of(tmp_path), spec.settings)
    metrics.saw([StateFound(found=Found.REPORTS_ITSELF, detail="transformers")], attempt=1)
    metrics.close()

    assert trainer.told == []
    assert reporter({"kubeflow.trainer": 1}) == "kubeflow"
    own = SimpleNamespace(KubeflowCallback=1)
    name = "transformers.integrations.integration_utils"
    assert reporter({"transformers.trainer": 1, name: own}) == "transformers"
    assert reporter({"transformers.trainer": 1, name: SimpleNamespace()}) == ""
    assert reporter({name: own}) == ""  # imported, and no Trainer


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({KUBEFLOW_URL: "https://a"}, False),
        ({KUBEFLOW_URL: "https://a", TOKEN: "/t"}, True),
        ({KUBEFLOW_URL: "https://a", TOKEN: "/t", OFF: "true"}, False),
    ],
)
def test_only_a_trainjob_that_wants_it_is_reported(environ: dict[str, str], *, asked: bool) -> None:
    assert is_asked(environ) == asked


def test_the_controllers_certificate_is_the_one_that_is_trusted(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "ca.crt"
    subprocess.run(
        [*("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
         *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
         *("-keyout", str(key), "-out", str(cert))],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    trainer.socket = context.wrap_socket(trainer.socket, server_side=True)
    monkeypatch.setenv(KUBEFLOW_URL, os.environ[KUBEFLOW_URL].replace("http:", "https:"))
    for ca, is_told in ((None, False), (str(cert), True)):
        environ = {**os.environ, **({CA_CERT: ca} if ca else {})}
        status = TrainerStatus(environ, lambda: status_of([], "running", math.nan), every_s=0.01)
        status.start()
        status.close()
        assert bool(trainer.told) == is_told
        assert ("CERTIFICATE_VERIFY_FAILED" in (status.problem() or "")) == (not is_told)
