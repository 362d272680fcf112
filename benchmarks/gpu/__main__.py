"""What only a device can show, as one command.

    python -m benchmarks.gpu [POINT ...] [--json FILE] [--device cpu] [--keep FOLDER]

Twelve points in order, each by its name: what graphs, waits, bits, time, memory, kills and faults
are with `supervisor run` against plain python. Without a device each says so. `--device cpu` tries
the scripts of those points that do not need one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.points import POINTS, Place, Row

NO_DEVICE = "not run: no device"


def rows_of(name: str, place: Place | None) -> Iterator[Row]:
    """One point's rows as they come; `place` is None where there is no device."""
    if place is None:
        yield Row(what=name, found=NO_DEVICE, good=None)
        return
    try:
        yield from POINTS[name](place)
    except Exception as error:
        traceback.print_exc()
        yield Row(what=name, found=f"FAILED: {type(error).__name__}: {error}", good=False)


def not_run(points: int) -> str:
    why = "`make gpu` runs them" if torch.cuda.is_available() else "no device"
    return f"{points} GPU points not run: {why}"


def described(device: str) -> dict[str, str]:
    """The card, the driver and torch."""
    found = {"torch": torch.__version__, "python": sys.version.split()[0], "card": "none"}
    if device == "cuda" and torch.cuda.is_available():
        found["card"] = torch.cuda.get_device_name(0)
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            found["driver"] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        except FileNotFoundError:
            found["driver"] = "unknown"
    return {**found, "date": time.strftime("%Y-%m-%d"), "cores": str(os.cpu_count())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help=f"of: {', '.join(POINTS)}; default: all")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dry", action="store_true", help="run none, and say how many are not")
    parser.add_argument("--keep", type=Path, help="folder for the runs; must not exist")
    options = parser.parse_args()
    for name in options.points:
        if name not in POINTS:
            parser.error(f"{name}: unknown point; choose from {', '.join(POINTS)}")
    if options.dry:
        print(not_run(len(options.points or POINTS)))
        return 0
    has_device = options.device == "cpu" or torch.cuda.is_available()
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Place(options.keep or Path(folder), options.device, options.steps, options.jobs)
        for name in options.points or POINTS:
            print(name, flush=True)
            rows: list[dict[str, Any]] = []
            done.append({"point": name, "rows": rows})
            for row in rows_of(name, place if has_device else None):
                mark = {True: "ok  ", False: "BAD ", None: "    "}[row.good]
                print(f"  {mark}{row.what}: {row.found}", flush=True)
                rows.append(row.as_json())
                if options.json:
                    found = {"machine": described(options.device), "points": done}
                    options.json.write_text(json.dumps(found, indent=1))
    told = [row for point in done for row in point["rows"]]
    unrun = sum(row["found"] == NO_DEVICE for row in told)
    if unrun:
        print(not_run(unrun))
    return any(row["good"] is False for row in told)


if __name__ == "__main__":
    raise SystemExit(main())
