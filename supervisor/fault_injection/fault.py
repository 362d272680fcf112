"""One entry of the config key ``faults``, checked before anything is started; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from supervisor.config_check import did_you_mean
from supervisor.errors import ConfigError
from supervisor.ranks import FIRST_RANK
from supervisor.storage.files.json_files import build_record

PROCESS_KINDS = (
    "sigkill",
    "sigsegv",
    "sigterm_parent",
    "exception",
    "hang",
    "out_of_memory",
    "exit",
    "disk_full",
    "damaged_checkpoint",
    "slow",
)
NUMERIC_KINDS = (
    "nan_data",
    "nan_loss",
    "nan_gradient",
    "loss_spike",
    "gradient_spike",
    "weight",
    "second_moment",
    "lr_spike",
)
KINDS = (*NUMERIC_KINDS, *PROCESS_KINDS)
MOMENTS = ("forward", "evaluation", "backward", "update", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What strikes when; the keys are described in `supervisor.fault_injection.injector`."""

    kind: str
    step: int = 0
    moment: str = field(default="after", metadata={"one_of": MOMENTS})
    count: int = 1
    factor: float = math.nan
    every: bool = False
    rank: int = FIRST_RANK
    transient: bool = False

    def factor_or(self, usual: float) -> float:
        """Returns `factor`, or `usual` where none was given."""
        return usual if math.isnan(self.factor) else self.factor

    @classmethod
    def from_config(cls, entry: Mapping[str, Any]) -> Fault:
        """Returns the fault of one entry.

        Raises:
            ConfigError: an unknown kind, key or moment, or a value of the wrong type.
        """
        kind = str(entry.get("kind", ""))
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS) or f": one of {', '.join(KINDS)}"
            raise ConfigError(f"faults: unknown kind {kind!r}{hint}")
        names = [known.name for known in fields(cls)]
        for name in entry:
            if name not in names:
                hint = did_you_mean(str(name), names) or f"; known: {', '.join(names)}"
                raise ConfigError(f"faults: {kind}: unknown key {str(name)!r}{hint}")
        try:
            fault = build_record(cls, dict(entry))
        except ValueError as error:
            raise ConfigError(f"faults: {kind}: {error}") from error
        if fault.step < 0 or fault.count < 1:
            raise ConfigError(f"faults: {kind}: step is at least 0, count at least 1")
        return fault
