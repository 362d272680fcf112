"""The findings as SARIF 2.1.0, which code hosts show beside the lines they speak of."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from supervisor.source_check.finding import CheckResult, Finding, Risk
from supervisor.version import __version__

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
