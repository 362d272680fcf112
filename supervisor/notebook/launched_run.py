"""What a launched run came to."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.storage.files.line_file import read_lines


@dataclass(frozen=True, slots=True)
class LaunchedRun:
    """A run that has ended; a notebook shows it as a small table.

    Attributes:
        directory: the run directory.
        exit_code: of `supervisor run` (docs/commands.md): 0 is completed.
    """

    directory: Path
    exit_code: int

    @property
    def report(self) -> dict[str, Any]:
        """The report as data (docs/report.md); empty if there is none."""
        try:
            found = json.loads(
                (self.directory / "report" / "report.json").read_text(encoding="utf-8")
            )
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def verdict(self) -> str:
        """The report's first sentences; "" without a report."""
        return str(self.report.get("verdict", ""))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The journal's lines (docs/architecture.md), oldest first."""
        return read_lines(self.directory / "events.jsonl")

    @property
    def report_html(self) -> Path:
        """The report as one offline page."""
        return self.directory / "report" / "report.html"

    def _repr_html_(self) -> str:
        return _table(
            {
                "exit code": str(self.exit_code),
                "verdict": self.verdict or "no report",
                "report": str(self.report_html) if self.report_html.exists() else "",
                "run": str(self.directory),
            }
        )


def _table(rows: Mapping[str, str]) -> str:
    cells = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows.items()
        if value
    )
    return f"<table>{''.join(cells)}</table>"
