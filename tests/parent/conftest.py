from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.restarts.restart_policy import Backoff
from supervisor.parent.supervisor import Supervisor
from supervisor.parent.terminal.outcome import RunResult
from supervisor.settings import PolicySettings, RunSettings
from tests.journals import read_raw

HERE = Path(__file__).parent
FAKE_WORKER = (sys.executable, str(HERE / "fake_worker.py"))


@dataclass
class Ran:
    """A finished run of the real supervisor over a fake worker."""

    result: RunResult
    run_dir: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_raw(self.run_dir / "events.jsonl")

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def facts(self, attempt: int = 1) -> dict[str, Any]:
        return json.loads((self.run_dir / f"facts_{attempt}.json").read_text())

    def order(self, attempt: int) -> dict[str, Any]:
        return json.loads((self.run_dir / f"orders/attempt_{attempt}.json").read_text())


def fast_settings() -> RunSettings:
    settings = RunSettings()
    settings.report.enabled = False
    settings.checkpoint.min_free_gib = 0.0
    settings.watchdog.stack_interval_s = 0.2
    return settings


def has_ended(pid: int) -> bool:
    """Zombies have ended too: nobody may be there to collect orphans (a container)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., Ran]:
    """Runs a plan (attempt → commands, see fake_worker.py) to its end."""

    def run(
        plan: dict[str, list[list[Any]]], *, settings: RunSettings | None = None, **fields: Any
    ) -> Ran:
        target = tmp_path / "plan.json"
        target.write_text(json.dumps(plan))
        fields = {"kind": "script", "target": str(target), "quiet": True, **fields}
        spec = LaunchSpec(
            run_dir=tmp_path / "run",
            settings=settings or fast_settings(),
            policy=PolicySettings(),
            **fields,
        )
        supervisor = Supervisor(
            spec, worker_command=FAKE_WORKER, poll_s=0.05, backoff=Backoff(0.0, 0.0)
        )
        return Ran(supervisor.run(), tmp_path / "run")

    return run
