"""A real browser shows the page without a complaint. Skipped where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.report.facts import gather
from supervisor.report.write import write_report
from tests.report import synthetic_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_chromium_shows_the_verdict_without_an_error(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    page = write_report(root)["html"]
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
               "--enable-logging=stderr", "--dump-dom", page.as_uri()]  # fmt: skip

    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "HOME": str(tmp_path)},
        )
    except subprocess.TimeoutExpired:
        pytest.skip("Chromium does not answer on this machine")
    if done.returncode != 0:  # no page can do that: the browser itself does not work here
        pytest.skip(f"Chromium does not start on this machine: {done.stderr[-300:]}")

    assert gather(root).verdict in done.stdout
    assert done.stdout.count("<svg") == 2
    assert "CONSOLE" not in done.stderr
