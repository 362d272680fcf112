"""What the script has been seen to use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ScriptUse:
    """Filled in while the script runs; some treatments work only where something is used.

    Attributes:
        autocast: an autocast region was entered.
        batches: it goes through `supervisor.batches`.
        batch_size: it asks `supervisor.batch_size`.
    """

    autocast: bool = False
    batches: bool = False
    batch_size: bool = False
