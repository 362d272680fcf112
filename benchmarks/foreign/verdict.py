"""What came of one foreign script: its healthy run, and each kill."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kill:
    """What came of one kill.

    Attributes:
        place: where it struck, in words.
        said: exactness of each resume; "start" when the script began anew; "treated" after it
            when the learning rate was changed with the restart; "" when nothing struck.
        true: "same", or what was different from plain python.
        reason: of the run, where it did not say `exact`.
    """

    place: str
    said: str
    true: str
    reason: str = ""

    @property
    def is_exact(self) -> bool:
        return set(self.said.split()) == {"exact"}

    @property
    def is_false(self) -> bool:
        return self.is_exact and self.true != "same"


@dataclass(frozen=True)
class Verdict:
    """What a trial showed.

    Attributes:
        plain: "same" if two runs of plain python are, what is not otherwise.
        healthy: "same", or what was different from plain python; "" when it did not run.
        treatments: of the healthy run.
        date: when it ran.
        torch: version that it ran with.
        version: the commit of the checkout; empty where it was not recorded.
    """

    name: str
    plain: str
    healthy: str = ""
    kills: tuple[Kill, ...] = ()
    treatments: int = 0
    steps: int = 0
    seconds: float = 0.0
    date: str = ""
    torch: str = ""
    version: str = ""

    @property
    def struck(self) -> list[Kill]:
        return [kill for kill in self.kills if kill.said]

    @property
    def is_healthy(self) -> bool:
        return self.healthy == "same" and not self.treatments

    @property
    def is_false(self) -> bool:
        return any(kill.is_false for kill in self.struck)

    @property
    def is_exact(self) -> bool:
        """Whether every kill was called exact, and was."""
        return bool(self.struck) and all(k.is_exact and k.true == "same" for k in self.struck)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_verdicts(path: Path | None) -> dict[str, Verdict]:
    """Returns what a file of `--json` holds, by the scripts' names; nothing where there is none."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text())
    found = [Verdict(**{**row, "kills": tuple(Kill(**k) for k in row["kills"])}) for row in rows]
    return {verdict.name: verdict for verdict in found}
