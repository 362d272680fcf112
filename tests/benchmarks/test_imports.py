"""What the benchmarks import exists: most of them are run by hand, long after a rename."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT_ASIDE = "planted_mistakes"
"""Scripts that are wrong on purpose."""


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
    }
    return {name for name in modules if name.split(".")[0] in ("benchmarks", "supervisor")}


def test_every_module_that_a_benchmark_imports_from_exists() -> None:
    files = [p for p in (ROOT / "benchmarks").rglob("*.py") if KEPT_ASIDE not in p.parts]

    missing = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files
        for name in imported(path)
        if not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
        and importlib.util.find_spec(name) is None
    }

    assert files
    assert missing == set()
