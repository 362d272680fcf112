"""Makes the README's pictures of reports anew, from real runs, with a headless Chromium.

    python -m benchmarks.report_pictures [--into docs/images]

``overview.png`` is a picture of the report of ``make demo``'s training under attack; the two others
show parts of a report's page: a learning rate that jumps, and an operation without a guard that
`supervisor explain` finds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.image
import numpy as np

SUPERVISOR = [sys.executable, "-m", "supervisor.cli.main"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, TALLEST = 1000, 4000  # pixels of the window: as wide as the page's text, taller than it
MARGIN = 22  # pixels of background that stay below the last section

DEMO = Path(__file__).parents[1] / "examples" / "char_lm.py"
FAULTS = "faults=[{kind: nan_data, step: 120},{kind: sigkill, step: 200}]"

RATE_JUMP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    optimizer.param_groups[0]["lr"] = 0.01 if step < 60 else 10.0  # the schedule goes wrong
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True) - 0.5 * torch.randn(32, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

NO_GUARD = """
import torch
torch.manual_seed(0)


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return self.mix((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16, bias=False)
        self.middle = Normalised()
        self.last = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.middle(self.first(x).relu()))


inputs = torch.randn(960, 8)
inputs[486] = 0.0  # an empty sample: all its features are alike, so it divides by zero
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in torch.utils.data.DataLoader(data, batch_size=8):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def run(folder: Path, script: str, *options: str) -> Path:
    """Trains `script` under supervision in `folder`; returns the run directory."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    run_dir = folder / "train"
    command = [*SUPERVISOR, "run", "--quiet", "--run-dir", str(run_dir), *options, "train.py"]
    subprocess.run(command, cwd=folder, check=False)
    return run_dir


def supervisor(command: str, run_dir: Path) -> None:
    subprocess.run([*SUPERVISOR, command, str(run_dir)], cwd=run_dir.parent, check=True)


def photograph(run_dir: Path, sections: list[str], target: Path, *, header: bool) -> None:
    """Writes what a browser shows of these sections of a report, in the light theme."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("no Chromium on this machine")
    kept = ", ".join(f"#{name}" for name in sections)
    style = f"main > *:not({kept}), footer {{ display: none; }}"
    style += "" if header else " header { display: none; }"
    page = (run_dir / "report" / "report.html").read_text(encoding="utf-8")
    part = run_dir.parent / "part.html"
    part.write_text(page.replace("</head>", f"<style>{style}</style></head>"), encoding="utf-8")
    shot = run_dir.parent / "part.png"
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-dev-shm-usage", "--hide-scrollbars", "--blink-settings=preferredColorScheme=1",
         f"--user-data-dir={run_dir.parent / 'profile'}", f"--window-size={WIDTH},{TALLEST}",
         f"--screenshot={shot}", part.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip
    pixels = matplotlib.image.imread(shot)
    written = np.flatnonzero((pixels != pixels[-1, 0]).any(axis=(1, 2)))
    matplotlib.image.imsave(target, pixels[: written[-1] + MARGIN])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    into = parser.parse_args().into.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        options = ("--set", "checkpoint.every_steps=50", "--set", FAULTS)
        demo = run(folder / "demo", DEMO.read_text(encoding="utf-8"), *options)
        shutil.copyfile(demo / "report" / "overview.png", into / "overview.png")

        jump = run(folder / "jump", RATE_JUMP)
        parts = ["next", "interventions", "last-minutes", "curves"]
        photograph(jump, parts, into / "report_divergence.png", header=True)

        guard = run(folder / "guard", NO_GUARD)
        supervisor("explain", guard)
        supervisor("report", guard)
        parts = ["explain", "unhealthy", "gradient-flow"]
        photograph(guard, parts, into / "report_explain.png", header=False)


if __name__ == "__main__":
    main()
