"""Runs `Supervisor` over a fake worker in a process of its own; prints the result as JSON.

``supervise_plan.py RUN_DIR PLAN OUT [KEY=VALUE ...]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.restarts.restart_policy import Backoff
from supervisor.parent.supervisor import Supervisor
from supervisor.settings import PolicySettings, RunSettings

WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def main() -> None:
    run_dir, plan, out, *pairs = sys.argv[1:]
    settings = RunSettings()
    settings.report.enabled = False
    settings.checkpoint.min_free_gib = 0.0
    for pair in pairs:
        key, value = pair.split("=")
        section, name = key.split(".")
        setattr(getattr(settings, section), name, float(value))
    spec = LaunchSpec(
        kind="script",
        target=plan,
        run_dir=Path(run_dir),
        settings=settings,
        policy=PolicySettings(),
        quiet=True,
    )
    backoff = Backoff(0.0, 0.0) if settings.restart.backoff_s == 1.0 else None
    supervisor = Supervisor(spec, worker_command=WORKER, poll_s=0.05, backoff=backoff)
    result = supervisor.run()
    Path(out).write_text(json.dumps({"exit_code": result.exit_code, "state": result.state}))
    sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
