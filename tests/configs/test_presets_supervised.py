"""Presets on unmodified scripts under `supervisor run`, which know nothing of a supervisor."""

from __future__ import annotations

import math
from pathlib import Path

from supervisor.storage.steps.flight_recorder import FlightReader
from tests.configs import scripts
from tests.scenarios.runs import Ended, supervised

GONE = 0.01
"""Nats of KL under which a posterior tells nothing any more."""


def watched(folder: Path, preset: str, script: str, argument: str, *settings: str) -> Ended:
    """Runs to the end whatever is seen."""
    ended = supervised(
        folder,
        script,
        (argument,),
        settings=settings,
        options=("--config", preset, "--policy", "observe_only"),
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def vae(folder: Path, growth: str, *more: str) -> Ended:
    # Looks at fixed steps, so that nothing here depends on how fast the machine is.
    settings = ("probes.every_steps=5", "detectors.early_collapse.warmup_steps=100")
    return watched(folder, "vae", scripts.VAE, growth, *settings, *more)


def levels(ended: Ended) -> dict[str, int]:
    """Level of collapse → step at which it was first told."""
    told: dict[str, int] = {}
    for alert in ended.events("alert"):
        if alert["alert_kind"] == "posterior_collapse":
            told.setdefault(alert["metadata"]["level"], alert["step"])
    return told


OWN = """
from supervisor.detectors import Detector
from supervisor.records import Cause, Severity

class KlFloor(Detector):
    name = "kl_floor"

    def __init__(self, *, line=1.0):
        self.line = line

    def update(self, record):
        self.score = float(record.observed.get("kl", self.line) < self.line)
        if not self.score:
            return None
        return self.alert(record, severity=Severity.LOW, category="collapse", kind="kl_floor",
                          cause=Cause.OTHER, message="below the floor")

def write_down(alert):
    with open("told.txt", "a") as file:
        file.write(alert.kind + "\\n")
"""


def test_a_vae_that_collapses_reaches_red_before_its_kl_is_gone(tmp_path: Path) -> None:
    """On the way: a detector and an alert handler of the user's own, named in the config."""
    (tmp_path / "own.py").write_text(OWN)
    mine = ("detectors.mine={class: own.KlFloor, line: 0.5}", "alert_handlers=[own.write_down]")

    ended = vae(tmp_path, "1.03", *mine)

    records = FlightReader(ended.run_dir / "steps" / "rank_0.steps").records(0)
    gone = next(r.step for r in records if r.observed.get("kl", math.inf) < GONE)
    told = levels(ended)
    assert told["orange"] < told["red"] < gone
    assert {"kl_floor", "posterior_collapse"} <= {*(tmp_path / "told.txt").read_text().split()}
    assert [a["detector"] for a in ended.events("alert") if a["alert_kind"] == "kl_floor"]


def test_a_healthy_vae_never_goes_beyond_yellow(tmp_path: Path) -> None:
    ended = vae(tmp_path, "1.0")

    assert set(levels(ended)) <= {"yellow"}
    assert "no_latents" not in {alert["alert_kind"] for alert in ended.events("alert")}


def test_a_loss_scale_that_decays_is_warned_of_before_the_run_stalls(tmp_path: Path) -> None:
    ended = watched(tmp_path, "fp16", scripts.FP16, "1.15")

    records = FlightReader(ended.run_dir / "steps" / "rank_0.steps").records(0)
    skipped = [record.step for record in records if record.scaler_skipped]
    stalls = [s for s in skipped if {*range(s, s + 20)} <= {*skipped}]
    scale_alerts = [a["step"] for a in ended.events("alert") if a["detector"] == "loss_scale"]
    assert stalls
    assert scale_alerts[0] < stalls[0] - 10
    assert any(event["step"] < stalls[0] - 10 for event in ended.events("risk"))
