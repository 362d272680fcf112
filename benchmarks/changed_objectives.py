"""What treatments cost a training whose objective has changed.

    python -m benchmarks.changed_objectives [--quick]

Each training is run twice: only observed, and treated. Printed is its loss against the observed
run's, behind the change and at the end; a minute a seed on one core. `--quick` is one seed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from supervisor.codes import Found
from supervisor.events.event import of_kind
from supervisor.events.state_events import StateFound
from supervisor.storage.journal.events import read_journal
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps

SEEDS = 3
STEPS = 450
LAST = 50
WINDOWS = ((0, 10), (10, 30), (30, 60), (60, 100))
ARMS = {
    "observed": ("--policy", "observe_only"),
    "treated": (),
}
PRELUDE = f"""
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(SEED); torch.set_num_threads(1)
STEPS = {STEPS}
"""
VAE = (
    PRELUDE
    + """
patterns = torch.rand(10, 64)
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
both = nn.ModuleList([encoder, decoder])
optimizer = torch.optim.Adam(both.parameters(), lr=1e-3)
for step in range(STEPS):
    images = patterns[torch.randint(0, 10, (64,))] + 0.1 * torch.randn(64, 64)
    images = images.clamp(0, 1)
    mu, logvar = encoder(images).chunk(2, 1)
    drawn = decoder(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
    kl = (-0.5 * (1 + logvar - mu**2 - logvar.exp())).sum(1).mean()
    weight = HEIGHT * min(1.0, max(0.0, (step - 200) / RAMP))
    loss = (drawn - images).square().sum(1).mean() + weight * kl
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)
OTHER_DATA = (
    PRELUDE
    + """
before, after = torch.randn(16, 1), torch.randn(16, 1) * 6
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(STEPS):
    x = torch.randn(64, 16)
    y = (x @ before).tanh() if step < 250 else 5 * (x @ after).tanh()
    loss = F.mse_loss(model(x), y + 0.1 * torch.randn(64, 1))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)
OTHER_CLASSES = (
    PRELUDE
    + """
classes = torch.randn(16, 8)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for step in range(STEPS):
    x = torch.randn(64, 16)
    target = (x @ classes[:, :2]).argmax(1) if step < 250 else ((x @ classes).argmax(1) + 3) % 8
    loss = F.cross_entropy(model(x), target)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)
TRAININGS = {
    "KL weight, slowly": VAE.replace("HEIGHT", "4").replace("RAMP", "100"),
    "KL weight, at once": VAE.replace("HEIGHT", "4").replace("RAMP", "10"),
    "KL weight, very high": VAE.replace("HEIGHT", "16").replace("RAMP", "100"),
    "other data": OTHER_DATA,
    "other classes": OTHER_CLASSES,
}


def losses(folder: Path, script: str, arm: str) -> tuple[dict[int, float], int]:
    """Returns the loss by step, and the step at which a rollback was found needless (-1: none)."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(script)
    options = [*ARMS[arm], "--set", "report.enabled=false", "--set", "policy.case_library=false"]
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", "run", *options]
    subprocess.run([*line, "train.py"], cwd=folder, capture_output=True, check=True)
    rundir = RunDirectory(folder / "run")
    rows = read_steps(rundir)
    found = [
        event.step or 0
        for event in of_kind(read_journal(rundir.journal), StateFound)
        if event.found is Found.ANOTHER_LEVEL
    ]
    by_step = zip(rows["step"].tolist(), rows["loss"].tolist(), strict=True)
    return dict(by_step), min(found, default=-1)


def compare(folder: Path, script: str) -> list[float] | None:
    """Returns the ratios to the observed run; None if no change was noticed."""
    made = {arm: losses(folder / arm, script, arm) for arm in ARMS}
    at = made["treated"][1]
    if at < 0:
        return None
    windows = [*((at + low, at + high) for low, high in WINDOWS), (STEPS - LAST, STEPS)]

    def means(arm: str) -> np.ndarray:
        loss = made[arm][0]
        return np.array([np.mean([loss[step] for step in range(*window)]) for window in windows])

    return list(means("treated") / means("observed"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    seeds = 1 if parser.parse_args().quick else SEEDS
    found: list[list[float]] = []
    names = [*(f"{low} to {high}" for low, high in WINDOWS), f"last {LAST}"]
    with tempfile.TemporaryDirectory() as folder:
        for name, script in TRAININGS.items():
            for seed in range(seeds):
                here = Path(folder) / f"{name} {seed}"
                ratios = compare(here, script.replace("SEED", str(seed)))
                if ratios is None:
                    print(f"{name}, seed {seed}: no change was noticed", flush=True)
                    continue
                found.append(ratios)
                said = "; ".join(
                    f"{what}: {one:.3f}" for what, one in zip(names, ratios, strict=True)
                )
                print(f"{name}, seed {seed}: {said}", flush=True)
    table = np.array(found)
    if len(table):
        mean = np.exp(np.log(table).mean(0))
        said = "; ".join(f"{what}: {one:.4f}" for what, one in zip(names, mean, strict=True))
        worse = int((table[:, -1] > 1.01).sum())
        print(
            f"all: {said}; at the end {table[:, -1].max():.4f} at worst, above 1.01 in "
            f"{worse} of {len(table)}"
        )


if __name__ == "__main__":
    main()
