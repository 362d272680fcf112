"""What a rank tells the others of a step: its record, what is due for it, and what it decided."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from supervisor.records import StepRecord

_NUMBERS = struct.Struct("<qqQQQQ7d")
_FLAGS = (
    "loss_seen",
    "grad_norm_seen",
    "scaler_skipped",
    "others_trained",
    "begins_training",
    "announced",
    "in_environment",
)
_LEAVES = 1 << 63
_STEP_IS_BEGUN = 1 << 62
_SNAPSHOTS_AT, _MOST_SNAPSHOTS = 56, 63
"""Below these two bits, six for a number."""
_FLAGS_OF = tuple(
    {name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)}
    for flags in range(1 << len(_FLAGS))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMessage:
    """One rank's part of an agreement.

    Attributes:
        record: as this rank has seen the step.
        due: one bit for each listener whose clock says that the next boundary is its turn.
        leaves: somebody wants this rank to end.
        step_is_begun: see `Progress`.
        decided: digest of all that was decided and done until the step before.
        exchanged: `Exchanges.balance` at the boundary behind which the step began.
        snapshots: for how many this rank has room.
    """

    record: StepRecord
    due: int = 0
    leaves: bool = False
    step_is_begun: bool = False
    decided: int = 0
    exchanged: int = 0
    snapshots: int = 0

    def pack(self, max_bytes: int) -> bytes:
        """Returns it as bytes; observed values that do not fit into `max_bytes` are left out."""
        record = self.record
        flags = (
            record.loss_seen
            | record.grad_norm_seen << 1
            | record.scaler_skipped << 2
            | record.others_trained << 3
            | record.begins_training << 4
            | record.announced << 5
            | record.in_environment << 6
        )
        numbers = _NUMBERS.pack(
            record.step,
            record.batch_size,
            flags,
            self.due
            | (_LEAVES if self.leaves else 0)
            | (_STEP_IS_BEGUN if self.step_is_begun else 0)
            | min(self.snapshots, _MOST_SNAPSHOTS) << _SNAPSHOTS_AT,
            self.decided,
            self.exchanged,
            record.loss,
            record.grad_norm,
            record.lr,
            record.loss_scale,
            record.step_time_s,
            record.memory_gib,
            record.clips_at,
        )
        if not record.observed:
            return numbers
        observed = json.dumps(dict(record.observed)).encode()
        return numbers + observed if len(numbers) + len(observed) <= max_bytes else numbers

    @classmethod
    def unpack(cls, data: bytes) -> StepMessage:
        """Returns what `pack` made these bytes of.

        Raises:
            ValueError: they are something else.
        """
        if len(data) < _NUMBERS.size:
            raise ValueError(f"{len(data)} bytes are no message of a step")
        step, batch_size, flags, due, decided, exchanged, *values = _NUMBERS.unpack_from(data)
        loss, grad_norm, lr, loss_scale, step_time_s, memory_gib, clips_at = values
        observed = data[_NUMBERS.size :]
        record = StepRecord(
            step=step,
            loss=loss,
            grad_norm=grad_norm,
            lr=lr,
            loss_scale=loss_scale,
            step_time_s=step_time_s,
            batch_size=batch_size,
            memory_gib=memory_gib,
            clips_at=clips_at,
            observed=json.loads(observed) if observed else {},
            **_FLAGS_OF[flags & len(_FLAGS_OF) - 1],
        )
        return cls(
            record=record,
            due=due & (1 << _SNAPSHOTS_AT) - 1,
            leaves=bool(due & _LEAVES),
            step_is_begun=bool(due & _STEP_IS_BEGUN),
            decided=decided,
            exchanged=exchanged,
            snapshots=due >> _SNAPSHOTS_AT & _MOST_SNAPSHOTS,
        )
