"""The labels of public logs: INDEX.md beside the logs, and labels.tsv for those found later."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LABELS = Path(__file__).parent / "labels.tsv"
LATER = "later"
"""The use of the logs in labels.tsv: to measure, once."""

EVENT = re.compile(r"(\d+)→(\d+) (\w+)")


@dataclass(frozen=True)
class Log:
    """One labelled log; events are (onset row, peak row, kind)."""

    name: str
    use: str
    healthy: bool
    events: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True)
class Source:
    """Where a log of labels.tsv lies, and which of its rows count.

    Attributes:
        mapping: meaning → column, as `supervisor backtest --map` takes it.
        crop: first row and the row behind the last; None is the end.
    """

    name: str
    repository: str
    path: str
    commit: str
    mapping: dict[str, str]
    crop: tuple[int, int | None]


def read_index(folder: Path, use: str) -> Iterator[Log]:
    """The labelled logs of `folder`; `use` is tune, test or all."""
    for line in (folder / "INDEX.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 12 or not re.match(r"[ht]\d", cells[0]):
            continue
        if use in ("all", cells[1]):
            yield Log(cells[0], cells[1], cells[2] == "healthy", events_in(cells[10]))


def read_labels() -> Iterator[Log]:
    """The labelled logs of labels.tsv."""
    for row in _rows():
        yield Log(row["name"], LATER, row["label"] == "healthy", events_in(row["events"]))


def read_sources() -> Iterator[Source]:
    """Where the logs of labels.tsv are from."""
    for row in _rows():
        first, _, last = row["crop"].partition(":")
        yield Source(
            name=row["name"],
            repository=row["repository"],
            path=row["path"],
            commit=row["commit"],
            mapping=dict(pair.split("=", 1) for pair in row["map"].split(",") if pair),
            crop=(int(first or 0), int(last) if last else None),
        )


def events_in(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((int(onset), int(peak), kind) for onset, peak, kind in EVENT.findall(text))


def _rows() -> Iterator[dict[str, str]]:
    with LABELS.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
