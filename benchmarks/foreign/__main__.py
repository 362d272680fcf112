"""Public scripts under the supervisor, unmodified: healthy and killed, beside plain python.

    python -m benchmarks.foreign CHECKOUTS [--only WORD ...] [--json FILE]
    python -m benchmarks.foreign --table FILE

CHECKOUTS is a folder with a checkout of each repository of `catalogue.py` (a script whose
repository is not there, or whose packages are missing, is said to be left out). Each is run
twice by plain python, healthy, and killed in the training, in an evaluation and in a save; where it
has none of these, at a random step. A run is the same when weights, printed lines and written files
are those of plain python. With --json each result is written at once, and a command that was broken
off continues there; --again WORD runs such scripts once more. --table puts the table of such a
file into docs/foreign.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.foreign.catalogue import SCRIPTS
from benchmarks.foreign.table import compatibility_table
from benchmarks.foreign.trial import Trial
from benchmarks.foreign.verdict import Verdict, read_verdicts
from benchmarks.page import DOCS, put_into


def main() -> int:
    given = _options()
    verdicts = read_verdicts(given.json)
    if given.table:
        put_into(DOCS / "foreign.md", compatibility_table(read_verdicts(given.table).values()))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        for script in SCRIPTS:
            known = script.name in verdicts and not _is_named(script.name, given.again)
            if known or not (_is_named(script.name, given.only) or not given.only):
                continue
            if not (given.checkouts / script.checkout).is_dir():
                print(f"{script.name}: no checkout of {script.repository}", file=sys.stderr)
                continue
            trial = Trial(script, given.checkouts, folder, timeout_s=given.timeout_s)
            verdict = trial.run(given.settings, ["--policy", given.policy])
            verdicts[script.name] = verdict
            print(_row(verdict), flush=True)
            if given.json:
                told = [v.to_dict() for v in verdicts.values()]
                given.json.write_text(json.dumps(told, indent=1))
    ran = list(verdicts.values())
    return _tell([v for v in ran if v.healthy], len(ran))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.foreign", description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="?")
    words = {"nargs": "*", "default": [], "metavar": "WORD"}
    parser.add_argument("--only", **words, help="scripts with one of these words in their name")
    parser.add_argument("--again", **words, help="run these although their result is known")
    parser.add_argument("--policy", default="default")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--timeout-s", type=float, default=300.0)
    parser.add_argument("--keep", type=Path, help="folder for the runs, kept afterwards")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="of --json: its table into the page"
    )
    given = parser.parse_args()
    if given.checkouts is None and given.table is None:
        parser.error("CHECKOUTS is missing")
    return given


def _is_named(name: str, words: list[str]) -> bool:
    return any(word in name for word in words)


def _tell(ran: list[Verdict], tried: int) -> int:
    kills = [kill for v in ran for kill in v.struck]
    exact = [kill for kill in kills if kill.is_exact]
    false = [v.name for v in ran if v.is_false]
    others = [kill for kill in kills if not kill.is_exact]
    healthy = sum(v.is_healthy for v in ran)
    print(f"{len(ran)} of {tried} scripts ran; healthy as in plain python {healthy}")
    print(f"{len(kills)} kills: {len(exact)} called exact, of them false in {false or 'none'}")
    same = sum(kill.true == "same" for kill in others)
    print(f"not called exact: {len(others)}, of them the same {same}")
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
