"""Which loop styles resume exactly: a table, made by running them.

    python -m benchmarks.exactness_matrix [--step 9] [--json FILE]

Every style of tests/scenarios/loop_styles.py is run by plain python, and under `supervisor run`
with a SIGKILL after the given step; the last column compares all weights bit for bit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from tests.scenarios.loop_styles import LOOP_STYLES, script
from tests.scenarios.runs import differences, plain, supervised


def row(style: str, step: int, folder: Path) -> dict[str, str]:
    """Runs one style; returns what the supervisor said and what a comparison shows."""
    expected = plain(folder / "plain", script(style))
    killed = supervised(
        folder / "killed",
        script(style),
        settings=("checkpoint.every_steps=4",),
        faults=f"[{{kind: sigkill, step: {step}}}]",
    )
    said = [f"{event['exactness']}: {event['reason']}" for event in killed.events("resumed")]
    if killed.returncode != 0:
        return {"style": style, "said": "; ".join(said), "weights": "the run failed"}
    different = differences(expected.result(), killed.result())
    weights = "identical" if not different else f"differ: {different[0]}"
    return {"style": style, "said": "; ".join(said) or "not struck", "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("| loop style | resume | weights |\n| --- | --- | --- |")
    for number, style in enumerate(LOOP_STYLES):
        with tempfile.TemporaryDirectory() as folder:
            found = row(style, options.step, Path(folder) / str(number))
        rows.append(found)
        print(f"| {style} | {found['said'].split(':')[0]} | {found['weights']} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
