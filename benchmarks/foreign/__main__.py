"""Public scripts under the supervisor, unmodified: healthy and killed, beside plain python.

    python -m benchmarks.foreign CHECKOUTS [--only WORD] [--policy NAME] [--json FILE]

CHECKOUTS is a folder with a checkout of each repository of `catalogue.py` (a script whose
repository is not there, or whose packages are missing, is said to be left out). Each is run
twice by plain python, healthy, and killed in the training, in an evaluation and in a save. A run is
the same when weights, printed lines and written files are those of plain python.
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
    parser.add_argument(
        "--only", nargs="*", default=[], help="scripts with one of these words in their name"
    )
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
            if not any(word in script.name for word in given.only or [""]):
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
    return _tell([v for v in verdicts if v.healthy], len(verdicts))


def _tell(ran: list[Verdict], tried: int) -> int:
    healthy = sum(v.healthy == "same" and not v.treatments for v in ran)
    kills = [kill for v in ran for kill in v.struck]
    exact = [kill for kill in kills if kill.said == "exact"]
    false = [v.name for v in ran if any(kill.is_false for kill in v.kills)]
    print(f"{len(ran)} of {tried} scripts ran; healthy as in plain python {healthy}")
    print(f"{len(kills)} kills: {len(exact)} called exact, of them false in {false or 'none'}")
    print(
        f"not called exact: {sum(k.said != 'exact' for k in kills)}, of them the same "
        f"{sum(k.said != 'exact' and k.true == 'same' for k in kills)}"
    )
    return 0 if healthy == len(ran) and not false else 1


def _row(v: Verdict) -> str:
    text = f"| {v.name} | {v.plain} "
    if not v.healthy:
        return f"{text}|"
    text += f"| {v.healthy}{f', treated {v.treatments}' if v.treatments else ''} "
    told = [f"{k.place}: {k.said}, {k.true}" if k.said else f"{k.place}: -" for k in v.kills]
    return f"{text}| {'; '.join(told)} | {v.steps} | {v.seconds:.0f} s |"


if __name__ == "__main__":
    sys.exit(main())
