"""A real browser shows the page without a complaint. Skipped where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from supervisor.report.curves.plots import EVERY
from supervisor.report.facts import figures as palette
from supervisor.report.gathering import gather
from supervisor.report.write import write_report
from tests.report import synthetic_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MEASURE = """<script>
const pictures = [...document.querySelectorAll("img, canvas")];
const seen = pictures.filter(one => one.getBoundingClientRect().width > 0);
const cut = seen.filter(one => {
  const box = one.getBoundingClientRect();
  const frame = one.closest("figure, section").getBoundingClientRect();
  return box.right > frame.right + 1 || box.left < frame.left - 1;
});
const root = document.documentElement;
const wide = root.scrollWidth > root.clientWidth;
const told = `seen: ${seen.length} of ${pictures.length}, cut: ${cut.length}, page cut: ${wide}`;
document.body.append(told);
</script>"""
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_chromium_shows_the_verdict_without_an_error(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    page = write_report(root)["html"]
    done = _show(page, tmp_path)

    assert gather(root).verdict in done.stdout
    assert done.stdout.count("<canvas") == 4
    assert "CONSOLE" not in done.stderr


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [500, 1280])
def test_no_picture_is_cut(tmp_path: Path, width: int) -> None:
    page = write_report(synthetic_run.treated(tmp_path / "run"), EVERY)["html"]
    measured = tmp_path / "measured.html"
    measured.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))

    done = _show(measured, tmp_path, f"--window-size={width},900")

    assert "seen: 4 of 4, cut: 0, page cut: false" in done.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_take_the_colours_of_the_readers_theme(tmp_path: Path, theme: str) -> None:
    page = write_report(synthetic_run.treated(tmp_path / "run"))["html"]
    shot = tmp_path / "page.png"
    of_dark = ("--blink-settings=preferredColorScheme=0",) if theme == "dark" else ()

    _show(page, tmp_path, "--window-size=1280,2600", f"--screenshot={shot}", *of_dark)

    pixels = np.rint(matplotlib.image.imread(shot)[..., :3] * 255).astype(np.int64)
    seen = {f"#{colour:06x}" for colour in np.unique(pixels @ [1 << 16, 1 << 8, 1])}
    for light in (palette.LOSS, palette.RATE, palette.RISK):
        dark = palette.DARK[light][1]
        assert (light in seen, dark in seen) == (theme == "light", theme == "dark")


def _show(page: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
               "--enable-logging=stderr", *options, "--dump-dom", page.as_uri()]  # fmt: skip

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
    return done
