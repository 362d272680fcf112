"""The faults of a drill and the settings that they need."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.errors import UsageError
from supervisor.ranks import LEAD_RANK


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillFault:
    """A fault of the menu.

    Attributes:
        name: as the user calls it.
        kind: as the config key ``faults`` calls it.
        about: what happens, in a few words.
        resume: the run ends, and is continued with `supervisor resume`.
        hangs: the step takes long, so the watchdog gets a short time limit.
        factor: duration of the fault, as a multiple of the watchdog's limit.
        settings: further config keys.
    """

    name: str
    kind: str
    about: str
    resume: bool = False
    hangs: bool = False
    factor: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def settings_at(
        self, step: int, hang_timeout_s: float, rank: int = LEAD_RANK
    ) -> dict[str, str]:
        """Returns the config keys of a run that this fault strikes at `step`, on one rank."""
        factor = "" if self.factor is None else f", factor: {self.factor * hang_timeout_s:.3f}"
        fault = f"kind: {self.kind}, step: {step}{factor}, rank: {rank}"
        chosen = {"faults": f"[{{{fault}}}]", **self.settings}
        if self.hangs:
            chosen["watchdog.hang_timeout_s"] = f"{hang_timeout_s:.3f}"
            chosen["watchdog.stack_interval_s"] = "0.5"
            chosen["watchdog.grace_s"] = "2"
        return chosen


def _fault(name: str, about: str, kind: str = "") -> DrillFault:
    return DrillFault(name=name, kind=kind or name, about=about)


MENU: Mapping[str, DrillFault] = {
    fault.name: fault
    for fault in (
        _fault("sigkill", "the process is killed"),
        DrillFault(
            name="sigterm",
            kind="sigterm_parent",
            about="the supervisor is asked to end; the run is resumed",
            resume=True,
        ),
        _fault("exception", "the training loop raises"),
        _fault("out_of_memory", "the device has no memory left"),
        DrillFault(name="hang", kind="hang", about="a step never ends", hangs=True),
        DrillFault(
            name="slow_loader",
            kind="slow",
            about="a batch comes late, but comes",
            hangs=True,
            factor=0.5,
        ),
        _fault("nan_data", "a batch holds NaN"),
        _fault("nan_loss", "the loss is NaN"),
        _fault("nan_gradient", "a gradient holds NaN"),
        _fault("loss_spike", "a loss ten thousand times too high"),
        _fault("weight", "a weight in memory becomes a million"),
        _fault("second_moment", "the optimizer's second moments shrink a billion times"),
        _fault("disk_full", "no file can grow for 20 steps"),
        DrillFault(
            name="damaged_checkpoint",
            kind="damaged_checkpoint",
            about="the newest checkpoint loses a bit, then the process is killed",
            settings={"checkpoint.background": "false"},
        ),
    )
}


def choose(names: Sequence[str]) -> list[DrillFault]:
    """Returns the faults of these names; all faults if none is named.

    Raises:
        UsageError: there is no such fault; names the nearest.
    """
    for name in names:
        if name not in MENU:
            near = difflib.get_close_matches(name, MENU, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(MENU)}"
            raise UsageError(f"drill: --faults {name}: no such fault: {hint}")
    return [MENU[name] for name in names] if names else list(MENU.values())
