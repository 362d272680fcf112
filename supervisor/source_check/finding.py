"""What a check found.

The findings as SARIF 2.1.0, which code hosts show beside the lines they speak of.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from supervisor.version import __version__

Risk = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One risky place in one source file."""

    path: Path
    line: int
    """First line of the place, counted from 1."""
    column: int
    """First column of the place, counted from 1."""
    rule: str
    """Name of the rule, as ``--select``, ``--ignore`` and suppression comments take it."""
    risk: Risk
    message: str
    """What is wrong and what it does to a training."""
    fix: str
    """What to write instead."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.risk}: {self.rule}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the entry of this finding in ``supervisor check --json``."""
        entry = asdict(self)
        del entry["column"]
        entry["path"] = str(self.path)
        return entry


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult:
    """The findings of one check, file by file, within a file by line and column."""

    findings: tuple[Finding, ...]
    files: int
    """Number of files that were looked at, those that do not parse included."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the document that ``supervisor check --json`` prints."""
        return {"findings": [finding.to_dict() for finding in self.findings], "files": self.files}

    def __repr__(self) -> str:
        """Returns what ``supervisor check`` prints."""
        found, files = len(self.findings), self.files
        count = f"{found} finding{'s' * (found != 1)} in {files} file{'s' * (files != 1)}"
        return "\n".join([*(f"{finding}\n    {finding.fix}" for finding in self.findings), count])


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[Risk, str] = {"high": "error", "medium": "warning", "low": "note"}


def to_sarif(result: CheckResult) -> dict[str, Any]:
    """Returns the SARIF log of a check, with one run; paths are relative to the current folder."""
    used = {finding.rule: finding for finding in result.findings}
    rules = [
        {
            "id": name,
            "shortDescription": {"text": name.replace("-", " ")},
            "help": {"text": finding.fix},
            "defaultConfiguration": {"level": _LEVELS[finding.risk]},
        }
        for name, finding in used.items()
    ]
    driver = {"name": "supervisor check", "version": __version__, "rules": rules}
    results = [_result(finding) for finding in result.findings]
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "utf16CodeUnits",
                "results": results,
            }
        ],
    }


def _result(finding: Finding) -> dict[str, Any]:
    return {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.risk],
        "message": {"text": f"{finding.message} {finding.fix}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.path)},
                    "region": {"startLine": finding.line, "startColumn": finding.column},
                }
            }
        ],
    }


def _uri(path: Path) -> str:
    """Returns the path as a relative URI where it lies below the current folder, else absolute."""
    absolute = path.resolve()
    current = Path.cwd()
    if absolute.is_relative_to(current):
        return quote(absolute.relative_to(current).as_posix())
    return absolute.as_uri()
