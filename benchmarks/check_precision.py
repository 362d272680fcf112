"""How often is a finding of ``supervisor check`` right? Runs it over public training code.

    python benchmarks/check_precision.py FOLDER [FOLDER...]

Each FOLDER holds one unpacked package or repository, under the name it has in
``check_review.json`` (``pip download --no-deps NAME==VERSION`` and ``unzip``, or ``git clone`` at
the commit given there). The review holds a verdict, made by reading the code, for each finding:

* true: what the message says holds at this place, in code that is or may be trained;
* false: it does not, or something else in the code rules it out.

Prints findings per rule with their verdicts. Without folders it prints the figures of the review
for each of its sets: what was read while the rules were made, and what was read after.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from supervisor.source_check.check import check_source

REVIEW = Path(__file__).with_name("check_review.json")
Key = tuple[str, str, int, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="*", type=Path)
    folders = parser.parse_args().folders
    review = json.loads(REVIEW.read_text(encoding="utf-8"))
    verdicts = {_key(entry): entry for entry in review["findings"]}
    if not folders:
        for name in review["sets"]:
            entries = [entry for entry in review["findings"] if entry["set"] == name]
            _print_figures(name, entries)
        return
    found = [key for folder in folders for key in _findings(folder)]
    unknown = [key for key in found if key not in verdicts]
    _print_figures("found now", [verdicts[key] for key in found if key in verdicts])
    print(f"\n{len(unknown)} findings without a verdict")
    for package, file, line, rule in unknown:
        print(f"  {package}/{file}:{line}: {rule}")
    names = {folder.name for folder in folders}
    gone = [key for key in verdicts if key[0] in names and key not in set(found)]
    print(f"{len(gone)} findings of the review that are no longer made")


def _key(entry: dict[str, Any]) -> Key:
    return entry["package"], entry["file"], entry["line"], entry["rule"]


def _findings(folder: Path) -> Iterable[Key]:
    result = check_source(folder)
    print(f"{folder.name}: {result}")
    for finding in result.findings:
        file = finding.path.relative_to(folder).as_posix()
        yield folder.name, file, finding.line, finding.rule


def _print_figures(title: str, entries: list[dict[str, Any]]) -> None:
    total = Counter(entry["rule"] for entry in entries)
    right = Counter(entry["rule"] for entry in entries if entry["verdict"])
    share = f"{sum(right.values()) / len(entries):.0%}" if entries else "-"
    print(f"\n{title}: {sum(right.values())} of {len(entries)} findings right ({share})")
    for rule, count in total.most_common():
        print(f"  {rule:32} {right[rule]:4} of {count:4}")


if __name__ == "__main__":
    main()
