"""Serving, writing, and what is refused."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from supervisor.errors import ConfigError
from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.parent.metrics.metrics import Metrics, metrics_for
from supervisor.parent.metrics.metrics_output import MetricsFile
from supervisor.parent.metrics.run_figures import Metric, RunFigures, render
from supervisor.parent.process.launch import LaunchSpec
from supervisor.records import CrashRisk, StepRecord
from supervisor.settings import PolicySettings, RunSettings


def spec_of(folder: Path, *, resume: bool = False, **settings: object) -> LaunchSpec:
    return LaunchSpec(
        kind="script",
        target="train.py",
        run_dir=folder / "run",
        settings=RunSettings(**settings),  # type: ignore[arg-type]
        policy=PolicySettings(),
        resume=resume,
    )


def event(kind: str, **fields: object) -> JournalEvent:
    head = {"time": "", "attempt": 1, "rank": 0, "step": 5}
    return parse_event({**head, "kind": kind, **fields})


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return parsed(answer.read().decode())


def parsed(text: str) -> dict[str, float]:
    """``name{label of its own}`` → value; the label of the run is left out."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = [told for name, told in sample.labels.items() if name not in ("run", "script")]
            found[sample.name + (f"{{{own[0]}}}" if own else "")] = sample.value
    return found


def wait_for(what: Callable[[], bool], limit_s: float = 20.0) -> None:
    end_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_scrape_gets_the_steps_and_the_journal(tmp_path: Path) -> None:
    metrics = Metrics(spec := spec_of(tmp_path, metrics_port=0), spec.settings)
    seen = StepRecord(step=41, loss=2.5, loss_seen=True, grad_norm=3.0, grad_norm_seen=True, lr=0.1)

    metrics.saw([event("attempt_started", attempt=2, checkpoint_step=None)], 2)
    metrics.stepped([seen, StepRecord(step=42)], CrashRisk(step=42, probability=0.25))
    metrics.saw(
        [
            event("alert", severity="critical", detector="x", left_out=4),
            event("action", name="cut_lr", outcome="applied", applied=True, cost_s=0.0),
            event("worker_exited", cause="killed"),
            event("checkpoint_saved", time="2026-11-24T12:00:00+00:00"),
        ],
        2,
    )
    got = scrape(metrics.url)
    metrics.close()

    assert got["training_step"] == 42.0
    assert got["training_loss"] == 2.5
    assert got["training_gradient_norm"] == 3.0
    assert got["training_risk"] == 0.25
    assert got["training_attempts"] == 2.0
    assert got["training_steps_total"] == 2.0
    assert got["training_alerts_total{critical}"] == 5.0
    assert got["training_treatments_total{cut_lr}"] == 1.0
    assert got["training_worker_exits_total{killed}"] == 1.0
    assert got["training_last_checkpoint_timestamp_seconds"] == 1795521600.0
    assert got["training_state{running}"] == 1.0
    with pytest.raises(urllib.error.URLError):
        scrape(metrics.url)


def test_a_loss_of_nan_is_served_as_one_and_no_loss_as_none() -> None:
    figures = RunFigures("run", "train.py")

    before = parsed(render(figures.metrics()))
    figures.stepped([StepRecord(step=0, loss_seen=True)], None)
    after = parsed(render(figures.metrics()))

    assert "training_loss" not in before
    assert after["training_loss"] != after["training_loss"]
    assert "training_risk" not in after


def test_labels_and_values_survive_the_way(tmp_path: Path) -> None:
    name = 'a "b"\\c\nd'
    family = Metric("x", "gauge", "first\nsecond", tuple(({"run": name}, v) for v in (1e300, -0.5)))

    (read,) = text_string_to_metric_families(render([family]))

    assert [(s.labels["run"], s.value) for s in read.samples] == [(name, 1e300), (name, -0.5)]


def test_the_checkpoint_ages_while_nothing_happens() -> None:
    now = [1000.0]
    figures = RunFigures("run", "train.py", checkpoint_s=990.0, clock=lambda: now[0])

    now[0] = 1100.0

    assert parsed(render(figures.metrics()))["training_last_checkpoint_age_seconds"] == 110.0


def test_without_a_setting_nothing_listens(tmp_path: Path) -> None:
    metrics = Metrics(spec := spec_of(tmp_path), spec.settings)

    assert metrics.url == ""
    assert metrics.close() == []


def test_only_loopback_is_listened_at(tmp_path: Path) -> None:
    metrics = Metrics(spec := spec_of(tmp_path, metrics_port=0), spec.settings)

    assert metrics.url.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(metrics.url.replace("/metrics", "/"))
    metrics.close()


def test_a_client_that_says_nothing_does_not_hold_up_the_next(tmp_path: Path) -> None:
    metrics = Metrics(spec := spec_of(tmp_path, metrics_port=0), spec.settings)
    port = int(metrics.url.split(":")[2].split("/")[0])

    with socket.create_connection(("127.0.0.1", port)):
        got = scrape(metrics.url)
        metrics.close()  # and not the end of the run

    assert got["training_attempts"] == 0.0


def test_a_port_in_use_refuses_a_new_run_and_not_one_that_goes_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=rf"metrics_port: 127\.0\.0\.1:{port}: .*in use"):
            metrics_for(spec_of(tmp_path, metrics_port=port))
        metrics, why = metrics_for(spec_of(tmp_path, metrics_port=port, resume=True))

    assert "in use" in (why or "")
    assert metrics.url == ""


@pytest.mark.parametrize("name", ["figures.txt", "missing/a.prom"])
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="metrics_textfile"):
        metrics_for(spec_of(tmp_path, metrics_textfile=str(tmp_path / name)))


def test_the_file_is_written_when_the_run_begins_and_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    metrics = Metrics(spec := spec_of(tmp_path, metrics_textfile=str(path)), spec.settings)

    assert not path.exists()  # another run's, perhaps, until this one really begins
    metrics.saw([event("attempt_started", checkpoint_step=None)], 1)
    wait_for(path.exists)
    metrics.saw([event("run_finished", state="gave_up")], 1)
    assert metrics.close() == []

    assert parsed(path.read_text())["training_state{gave_up}"] == 1.0
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["a.prom"]


def _put_folder(path: Path) -> None:
    """Puts a folder where a file is that another thread writes again and again."""
    while not path.is_dir():
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir()


def test_a_file_that_fails_later_is_told_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = MetricsFile(folder / "a.prom", lambda: "x", every_s=0.01)
    written: list[int] = []
    file._document = lambda: str(written.append(1))  # type: ignore[method-assign]

    file.start()
    wait_for((folder / "a.prom").exists)
    _put_folder(folder / "a.prom")
    tries = len(written)
    wait_for(lambda: len(written) > tries + 3)

    assert "a.prom: Is a directory" in (file.problem() or "")
    assert file.problem() is None
    file.close()


def test_probes_ask_the_supervisor_and_stay_true(tmp_path: Path) -> None:
    metrics = Metrics(spec := spec_of(tmp_path, metrics_port=0), spec.settings)
    place = metrics.url.removesuffix("/metrics")

    def answer(path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(place + path, timeout=10) as got:
                return got.status, got.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    assert answer("/livez") == (200, b"ok")
    assert answer("/readyz") == (503, b"no step yet")
    metrics.stepped([StepRecord(step=3)], None)
    assert answer("/readyz") == (200, b"ok")
    # Another attempt replays: as many minutes as it takes, no step is seen.
    metrics.saw([event("worker_exited", cause="killed"), event("attempt_started")], attempt=2)
    assert answer("/livez?x=1") == answer("/readyz") == (200, b"ok")
    assert answer("/other")[0] == 404
    metrics.close()
