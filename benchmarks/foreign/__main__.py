"""Public scripts under the supervisor, unmodified: healthy and killed, beside plain python.

    python -m benchmarks.foreign CHECKOUTS [--only WORD] [--policy NAME] [--json FILE]

CHECKOUTS is a folder with a checkout of each repository of `catalogue.py` (a script whose
repository is not there, or whose packages are missing, is said to be left out). Healthy is the same
when weights, printed lines and written files are those of plain python and nothing was treated.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.foreign.catalogue import SCRIPTS
from benchmarks.foreign.trial import Trial, Verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.foreign", description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", default="", help="scripts with this word in their name")
    parser.add_argument("--policy", default="default")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--timeout-s", type=float, default=300.0)
    parser.add_argument("--keep", type=Path, help="folder for the runs, kept afterwards")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    verdicts = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        for script in SCRIPTS:
            if given.only not in script.name:
                continue
            if not (given.checkouts / script.checkout).is_dir():
                print(f"{script.name}: no checkout of {script.repository}", file=sys.stderr)
                continue
            trial = Trial(script, given.checkouts, folder, timeout_s=given.timeout_s)
            verdict = trial.run(given.settings, ["--policy", given.policy])
            verdicts.append(verdict)
            print(_row(verdict), flush=True)
    if given.json:
        given.json.write_text(json.dumps([v.to_dict() for v in verdicts], indent=1))
    ran = [v for v in verdicts if v.healthy]
    same = sum(v.healthy == "same" and not v.treatments for v in ran)
    resumed = sum(v.killed in ("same", "not struck") for v in ran)
    print(f"{len(ran)} of {len(verdicts)} ran; healthy as in plain python {same}, killed {resumed}")
    false = [v.name for v in ran if v.exactness == "exact" and v.killed != "same"]
    if false:
        print(f"called exact and different: {', '.join(false)}")
    return 0 if same == resumed == len(ran) else 1


def _row(v: Verdict) -> str:
    text = f"{v.name:36} plain {v.plain:12}"
    if not v.healthy:
        return text
    text += f" healthy {v.healthy:8} treated {v.treatments:2} killed {v.killed:10} {v.exactness}"
    return f"{text} ({v.steps} steps, {v.seconds:.0f} s) {v.notes}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
