"""How many mistakes does ``supervisor check`` find? Runs it over files with planted ones.

    python -m benchmarks.check_recall [--json FILE] [--folder FOLDER]

`planted_mistakes` holds training code in the styles of public trainers. A line that is wrong ends
with ``# planted: RULE``. It counts as found if that rule speaks within `NEAR_LINES` lines of it;
a finding counts for one mistake only. What is found elsewhere is printed: either it is a mistake
that was not meant (``# also: RULE`` says so, after a review), or the check is wrong.

Those in `seen` may be read while rules are mended; those in `kept_aside` are for measuring only.
`held_out` was written before the rules learned to see through aliases and calls, for that change;
`held_out_twins` is the same code without the mistakes: each finding there is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from supervisor.source_check.check import check_source

FOLDER = Path(__file__).with_name("planted_mistakes")
NEAR_LINES = 12
_MARK = re.compile(r"# (planted|also): ([\w-]+)")


@dataclass(slots=True, kw_only=True)
class Measured:
    """What was found of the mistakes in one folder; each as ``file:line: rule``.

    Attributes:
        found, missed: of the planted mistakes.
        also: findings that are right, though nobody planted them.
        wrong: findings that are neither.
    """

    found: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return len(self.found) / max(1, len(self.found) + len(self.missed))


def measure(folder: Path) -> Measured:
    """Runs the check over the Python files of a folder and compares it with their marks."""
    measured = Measured()
    for path in sorted(folder.rglob("*.py")):
        findings = [(finding.line, finding.rule) for finding in check_source(path).findings]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for kind, rule in _MARK.findall(line):
                near = _nearest(findings, number, rule)
                if near is not None:
                    findings.remove(near)
                text = f"{path.name}:{number}: {rule}"
                if kind == "planted":
                    (measured.missed if near is None else measured.found).append(text)
                elif near is not None:
                    measured.also.append(text)
        measured.wrong += [f"{path.name}:{line}: {rule}" for line, rule in findings]
    return measured


def _nearest(findings: Sequence[tuple[int, str]], line: int, rule: str) -> tuple[int, str] | None:
    near = [each for each in findings if each[1] == rule and abs(each[0] - line) <= NEAR_LINES]
    return min(near, key=lambda each: abs(each[0] - line), default=None)


def table(measured: dict[str, Measured]) -> str:
    """Returns found and planted for each rule and set, in Markdown, then every miss by name."""
    lines = ["| rule | " + " | ".join(measured) + " |", "| --- |" + " ---: |" * len(measured)]
    rules = {_rule(text) for part in measured.values() for text in (*part.found, *part.missed)}
    for rule in sorted(rules):
        cells = [_cell(part, rule) for part in measured.values()]
        lines.append(f"| `{rule}` | " + " | ".join(cells) + " |")
    cells = [
        f"{len(part.found)} of {planted} ({part.recall:.0%})" if planted else "-"
        for part in measured.values()
        for planted in [len(part.found) + len(part.missed)]
    ]
    lines.append("| all | " + " | ".join(cells) + " |")
    for name, part in measured.items():
        lines += ["", f"{name}: {len(part.also)} more findings are right, {len(part.wrong)} wrong"]
        lines += [f"  missed {text}" for text in part.missed]
        lines += [f"  wrong  {text}" for text in part.wrong]
    return "\n".join(lines)


def _cell(part: Measured, rule: str) -> str:
    found = sum(_rule(text) == rule for text in part.found)
    missed = sum(_rule(text) == rule for text in part.missed)
    return f"{found} of {found + missed}" if found + missed else "-"


def _rule(text: str) -> str:
    return text.rpartition(" ")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="holds one folder for each set")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sets = sorted(path for path in options.folder.iterdir() if path.is_dir())
    measured = {path.name: measure(path) for path in sets}
    print(table(measured))
    if options.json:
        options.json.write_text(json.dumps({n: asdict(m) for n, m in measured.items()}, indent=1))


if __name__ == "__main__":
    main()
