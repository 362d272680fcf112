"""``python -m benchmarks.versions_table RESULTS.xml TESTS``: puts a run of the tests into
docs/versions.md, as the row of the Python that this is called with. Called by `noxfile.py`.
"""

from __future__ import annotations

import platform
import re
import sys
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "versions.md"
_ROW = re.compile(r"^\| \d{4}-.*\|$", re.MULTILINE)
_RULE = re.compile(r"^\| ---.*\|$", re.MULTILINE)


def row(results: str, tests: str, python: str, torch: str) -> str:
    """Returns the line of the table.

    Args:
        results: of pytest, as JUnit's XML.
        tests: which, in words.
    """
    suites = list(ElementTree.fromstring(results).iter("testsuite"))
    count = {
        name: sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    }
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    date = suites[0].get("timestamp", "")[:10]
    cells = (date, python, torch, tests, passed, failed, count["skipped"], _failures(suites))
    return f"| {' | '.join(map(str, cells))} |"


def with_row(page: str, new: str) -> str:
    """Returns the page with a row in the place of the one of the same Python, in order."""
    kept = [old for old in _ROW.findall(page) if _minor(old) != _minor(new)]
    rows = sorted([*kept, new], key=_minor)
    bare = re.sub(r"^\| \d{4}-.*\|\n", "", page, flags=re.MULTILINE)
    return _RULE.sub(lambda rule: "\n".join([rule.group(), *rows]), bare, count=1)


def _minor(line: str) -> tuple[int, ...]:
    return tuple(map(int, line.split("|")[2].strip().split(".")[:2]))


def _failures(suites: list[ElementTree.Element]) -> str:
    names = [
        f"`{case.get('name', '').partition('[')[0]}`"
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return ", ".join(sorted(set(names)))


def main(results: Path, tests: str) -> int:
    new = row(results.read_text(), tests, platform.python_version(), metadata.version("torch"))
    PAGE.write_text(with_row(PAGE.read_text(), new))
    print(new)
    return int(new.split("|")[6].strip() != "0")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
