"""What the script has been seen to use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ScriptUse:
    """Filled in while the script runs; some treatments work only where something is used.

    Attributes:
        autocast: an autocast region was entered.
        batches: it goes through `supervisor.batches`.
        batches_to_leave_out: that `supervisor.batches` has still to leave out (``skip_data``).
        batch_size: it asks `supervisor.batch_size`.
        max_norm: what it gave its own gradient clipping the last time; None if it does not clip.
    """

    autocast: bool = False
    batches: bool = False
    batches_to_leave_out: int = 0
    batch_size: bool = False
    max_norm: Any = None

    @property
    def clips_at(self) -> float | None:
        """The bound of its own gradient clipping; None if it does not clip."""
        return None if self.max_norm is None else float(self.max_norm)

    def leave_out_batches(self, count: int) -> None:
        """So many batches more are to be left out."""
        self.batches_to_leave_out += count
