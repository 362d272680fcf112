"""What supervision costs a step: the same script plain and supervised, in turn, in one sitting.

    python -m benchmarks.overhead [--rounds 5] [--json FILE]

Each round runs the script once plain and once supervised, in alternating order, and gives the ratio
of their step times: the median over blocks of 64 steps of their means, because some of our work is
done every few steps (the first 50 steps are left out). Machines are noisy: the quartiles over the
rounds say how much the figure can be trusted. The pipeline's own cost is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pipeline_cost import measure_pipeline_us

TRAINER = Path(__file__).with_name("timed_trainer.py")
WARM_UP = 50
BLOCK = 64
TARGETS_MS = (2.0, 5.0, 50.0)
STEPS = {2.0: WARM_UP + 10 * BLOCK, 5.0: WARM_UP + 8 * BLOCK, 50.0: WARM_UP + 2 * BLOCK}
LAYERS = {2.0: 1, 5.0: 2, 50.0: 2}


def step_ms(target_ms: float, batch: int, steps: int, folder: Path, *, supervised: bool) -> float:
    """Typical step of one process in milliseconds."""
    out = folder / "times.json"
    script = [str(TRAINER), "--batch", str(batch), "--steps", str(steps), "--out", str(out)]
    script += ["--layers", str(LAYERS[target_ms])]
    line = [sys.executable, *script]
    if supervised:
        run_dir = tempfile.mkdtemp(dir=folder)
        line = [sys.executable, "-m", "supervisor.cli.main", "run", "--quiet"]
        line += ["--run-dir", f"{run_dir}/run", "--set", "report.enabled=false", *script]
    subprocess.run(line, check=True, capture_output=True)
    times = json.loads(out.read_text())[WARM_UP:]
    blocks = [times[at : at + BLOCK] for at in range(0, len(times), BLOCK)]
    return 1000.0 * statistics.median(statistics.mean(block) for block in blocks)


def batch_for(target_ms: float, folder: Path) -> int:
    """The batch size whose plain step takes about `target_ms`."""
    steps = WARM_UP + BLOCK
    small, large = (step_ms(target_ms, batch, steps, folder, supervised=False) for batch in (1, 32))
    slope = max((large - small) / 31.0, 1e-3)
    return max(1, round(1 + (target_ms - small) / slope))


def measure(target_ms: float, rounds: int, folder: Path) -> dict[str, float]:
    """Plain and supervised steps, and quartiles of their ratio over the rounds."""
    batch = batch_for(target_ms, folder)
    plain, watched = [], []
    for number in range(rounds):
        for supervised in (False, True) if number % 2 else (True, False):
            taken = step_ms(target_ms, batch, STEPS[target_ms], folder, supervised=supervised)
            (watched if supervised else plain).append(taken)
    ratios = sorted(w / p for w, p in zip(watched, plain, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "target_ms": target_ms,
        "plain_ms": statistics.median(plain),
        "supervised_ms": statistics.median(watched),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(target, options.rounds, Path(folder)) for target in TARGETS_MS]
    print("step    plain ms  supervised ms  overhead (quartiles over rounds)")
    for row in rows:
        shares = [100.0 * (row[key] - 1.0) for key in ("ratio", "ratio_low", "ratio_high")]
        print(
            f"{row['target_ms']:4.0f} ms {row['plain_ms']:8.2f} {row['supervised_ms']:12.2f}"
            f"     {shares[0]:+.1f} % ({shares[1]:+.1f} ... {shares[2]:+.1f})"
        )
    pipeline_us = measure_pipeline_us()
    print(f"pipeline: {pipeline_us:.1f} us a step (all default detectors, predictor, ladder)")
    if options.json:
        options.json.write_text(json.dumps({"steps": rows, "pipeline_us": pipeline_us}, indent=2))


if __name__ == "__main__":
    main()
