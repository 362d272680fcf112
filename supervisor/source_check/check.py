"""``supervisor check``: runs every rule over files and folders."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor.errors import UsageError
from supervisor.source_check.finding import CheckResult, Finding
from supervisor.source_check.rules import ALL_RULES
from supervisor.source_check.source import Rule, Source

UNREADABLE = "unreadable-source"
"""Rule name of the finding for a file that does not parse."""

_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "node_modules", "venv", "env", "build", "dist", "site-packages"}
)


def check_source(
    path: Path | str, *, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> CheckResult:
    """Checks one file, or every ``*.py`` below a folder, without running or importing it.

    Args:
        path: A Python file or a folder. In a folder, hidden folders, virtual environments,
            ``__pycache__``, ``build`` and ``dist`` are left out.
        select: Names of the rules to run; empty for all.
        ignore: Names of rules to leave out.

    Raises:
        UsageError: ``path`` does not exist, is or holds no Python file, or a rule name is unknown.
    """
    start = Path(path)
    rules = _choose(select, ignore)
    if not start.exists():
        raise UsageError(f"{start}: no such file or folder: give a Python file or a folder")
    _check_kind(start)
    files = list(_python_files(start))
    if not files:
        raise UsageError(f"{start}: no Python file in it: give a Python file or a folder with some")
    findings = [finding for file in files for finding in _check_file(file, rules)]
    return CheckResult(findings=tuple(findings), files=len(files))


def _choose(select: Sequence[str], ignore: Sequence[str]) -> list[Rule]:
    known = [rule.name for rule in ALL_RULES]
    for name in (*select, *ignore):
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
            raise UsageError(f"{name}: unknown rule: {hint}")
    return [
        rule
        for rule in ALL_RULES
        if (not select or rule.name in select) and rule.name not in ignore
    ]


def _check_kind(start: Path) -> None:
    """Refuses files of other kinds, which would otherwise pass without findings."""
    if start.is_file() and start.suffix.lower() not in ("", ".py", ".pyw", ".pyi"):
        hint = "give a Python file (.py) or a folder"
        if start.suffix.lower() == ".ipynb":
            hint = f"export it with `jupyter nbconvert --to script {start.name}` and give the .py"
        raise UsageError(f"{start}: is not a Python file: {hint}")


def _python_files(start: Path) -> Iterator[Path]:
    if start.is_file():
        yield start
        return
    for folder, subfolders, names in os.walk(start):
        subfolders[:] = sorted(name for name in subfolders if _is_own(Path(folder) / name))
        for name in sorted(names):
            if name.endswith(".py") and (Path(folder) / name).is_file():
                yield Path(folder) / name


def _is_own(folder: Path) -> bool:
    """Is this a folder of the project, not of a tool, a build or a virtual environment?"""
    if folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS:
        return False
    return not (folder / "pyvenv.cfg").exists()


def _check_file(path: Path, rules: Sequence[Rule]) -> list[Finding]:
    try:
        with tokenize.open(path) as stream:
            text = stream.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            return _check_parsed(Source(path, tree), text, rules) if _trains(text) else []
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
        return [_unreadable(path, error)]


def _trains(text: str) -> bool:
    """Does the file mention a training package? Others are only parsed."""
    return any(package in text for package in ("torch", "lightning", "accelerate"))


def _check_parsed(source: Source, text: str, rules: Sequence[Rule]) -> list[Finding]:
    suppressions = Suppressions(text)
    found: set[tuple[int, int, str]] = set()
    findings: list[Finding] = []
    for rule in rules:
        for node in rule.find(source):
            line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
            if (line, column, rule.name) in found:
                continue
            found.add((line, column, rule.name))
            if not suppressions.silence(rule.name, line, getattr(node, "end_lineno", line)):
                findings.append(_finding(source.path, line, column, rule))
    return sorted(findings, key=lambda finding: (finding.line, finding.column, finding.rule))


def _finding(path: Path, line: int, column: int, rule: Rule) -> Finding:
    return Finding(
        path=path,
        line=line,
        column=column,
        rule=rule.name,
        risk=rule.risk,
        message=rule.message,
        fix=rule.fix,
    )


def _unreadable(path: Path, error: Exception | MemoryError) -> Finding:
    reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
    return Finding(
        path=path,
        line=getattr(error, "lineno", None) or 1,
        column=1,
        rule=UNREADABLE,
        risk="low",
        message=f"This file could not be read as Python and was not checked: {reason}",
        fix="Fix the file, or check only the folders that hold your own code.",
    )


_OURS = re.compile(r"#\s*supervisor:\s*ignore(?:\[([\w\-,\s]*)\])?", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa(?::\s*([\w\-]+(?:[,\s]+[\w\-]+)*))?", re.IGNORECASE)
_EVERYTHING = frozenset({"*"})


class Suppressions:
    """Which rules the comments of one file silence, line by line.

    ``# supervisor: ignore[rule, rule]`` and ``# noqa: rule`` silence the named rules,
    ``# supervisor: ignore`` and ``# noqa`` all of them; on the line of the finding, on any other
    line of the same expression, or on a line of its own right above.
    """

    def __init__(self, text: str) -> None:
        self._rules: dict[int, frozenset[str]] = {}
        if not (_OURS.search(text) or _NOQA.search(text)):
            return
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    alone = not token.line[: token.start[1]].strip()
                    self._add(token.start[0] + alone, token.string)
        except (tokenize.TokenError, SyntaxError):
            return

    def _add(self, line: int, comment: str) -> None:
        found = _OURS.search(comment) or _NOQA.search(comment)
        if found is None:
            return
        named = frozenset(name.lower() for name in re.split(r"[,\s]+", found[1] or "") if name)
        self._rules[line] = self._rules.get(line, frozenset()) | (named or _EVERYTHING)

    def silence(self, rule: str, first_line: int, last_line: int) -> bool:
        """Is ``rule`` silenced for an expression that spans these lines?"""
        lines = range(first_line, last_line + 1)
        return any(self._rules.get(line, frozenset()) & {rule, "*"} for line in lines)
