"""What `import supervisor` offers: complete, documented, typed, and lazy."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import supervisor

ROOT = Path(__file__).parents[1]
NAMES = set(supervisor.__all__) - {"__version__"}


def test_every_name_can_be_fetched_and_has_a_docstring() -> None:
    without = [name for name in NAMES if not inspect.getdoc(getattr(supervisor, name))]

    assert without == []
    assert dir(supervisor) == sorted(supervisor.__all__)


def test_the_page_lists_exactly_these_names() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `supervisor\.(\w+)", page, re.MULTILINE)) == set(supervisor.__all__)


def test_a_type_checker_sees_what_is_fetched() -> None:
    tree = ast.parse((ROOT / "supervisor" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert set(seen) == NAMES
    assert seen == {name: getattr(supervisor, name).__module__ for name in NAMES}


def test_a_run_says_where_it_lies() -> None:
    assert repr(supervisor.Run(Path("/runs/a"))) == "Run(directory='/runs/a')"
