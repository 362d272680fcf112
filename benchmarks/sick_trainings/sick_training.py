"""One training of known cause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SickTraining:
    """One script and the truth about it.

    Attributes:
        cause: the root cause as `supervisor explain` calls it.
        text: of the script.
        faults: config key `faults` of the run; empty for a script that is sick by itself.
        sample: place of the guilty sample in its batch; None without one.
        modules, operations: any of these is right; empty where no module or operation is to blame.
    """

    name: str
    cause: str
    text: str
    faults: str = ""
    sample: int | None = None
    modules: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
