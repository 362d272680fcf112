"""Fetches the logs of labels.tsv again, and writes them as the benchmark reads them.

    python -m benchmarks.public_logs.collect CLONES LOGS

CLONES is a folder with clones of the repositories, OWNER+NAME each (bare or not). Each log is taken
from its commit, read as `supervisor backtest` reads it, cropped, and written to LOGS as CSV.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.public_logs.labels import Source, read_sources
from supervisor.analysis.backtest.trace import read_trace
from supervisor.records import StepRecord

COLUMNS = (
    *("step", "loss", "grad_norm", "lr", "loss_scale"),
    *("announced", "in_environment", "reward"),
)


def fetch(source: Source, clones: Path, folder: Path) -> Path:
    """Writes the file that `source` names into `folder`, under its own name.

    Raises:
        SystemExit: no clone, or no such commit or path in it.
    """
    clone = clones / source.repository.replace("/", "+")
    command = ["git", "-C", str(clone), "show", f"{source.commit}:{source.path}"]
    found = subprocess.run(command, capture_output=True)
    if found.returncode:
        raise SystemExit(f"{source.name}: {found.stderr.decode().strip()}")
    path = folder / Path(source.path).name
    path.write_bytes(found.stdout)
    return path


def write_log(records: Sequence[StepRecord], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(_cells, records))


def _cells(record: StepRecord) -> list[str]:
    values = {
        "loss": record.loss if record.loss_seen else None,
        "grad_norm": record.grad_norm if record.grad_norm_seen else None,
        "lr": _if_known(record.lr),
        "loss_scale": _if_known(record.loss_scale),
        "announced": 1 if record.announced else None,
        "in_environment": 1 if record.in_environment else None,
        "reward": record.observed.get("reward"),
    }
    shown = ("" if value is None else f"{value:.7g}" for value in values.values())
    return [str(record.step), *shown]


def _if_known(value: float) -> float | None:
    return None if math.isnan(value) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("logs", type=Path)
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    for source in read_sources():
        with tempfile.TemporaryDirectory() as folder:
            path = fetch(source, arguments.clones, Path(folder))
            records = list(itertools.islice(read_trace(path, source.mapping), *source.crop))
        write_log(records, arguments.logs / f"{source.name}.csv")
        print(f"{source.name}: {len(records)} rows")


if __name__ == "__main__":
    main()
