"""Where a script's loop goes on when another number of ranks takes a training over."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.storage.checkpoints.manifest import Checkpoint

UPDATES = "loop_updates"
"""In a manifest: how many updates the script's own loop had made."""
SPLITS_DATA = "splits_data"
"""In a manifest: a sampler gave each rank its share of the data."""
IS_COUNTED = "is_counted"
"""In a manifest: an earlier resume was counted; only so can a later one find the place again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCount:
    """Counts a replay that has no replay log of its own to its place in the loop.

    Where a sampler gives each rank its share of the data, an epoch has fewer updates the more ranks
    there are: the loop goes on where the same share of it is done. Otherwise it goes on at the same
    update.

    Attributes:
        updates: that the loop had made at the checkpoint.
        before, now: ranks that made them, and that go on.
        splits_data: a sampler gave each of those ranks its share.
    """

    updates: int
    before: int
    now: int
    splits_data: bool

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, before: int, now: int) -> LoopCount | None:
        """Returns the count for a resume from `checkpoint`; None where a replay log leads back.

        Args:
            before: ranks that saved it.
            now: ranks that resume.
        """
        if before == now and not checkpoint.meta.get(IS_COUNTED):
            return None
        return cls(
            updates=int(checkpoint.meta.get(UPDATES, checkpoint.step)),
            before=before,
            now=now,
            splits_data=bool(checkpoint.meta.get(SPLITS_DATA)),
        )

    @property
    def is_of_others(self) -> bool:
        """Whether the number of ranks has changed."""
        return self.before != self.now

    def target(self, *, splits_data: bool) -> int:
        """Returns at which update of the loop the state is put back.

        Args:
            splits_data: the script as it runs now has such a sampler.
        """
        if not self.is_scaled(splits_data=splits_data):
            return self.updates
        return max(1, self.updates * self.before // self.now)

    def is_scaled(self, *, splits_data: bool) -> bool:
        """Whether the loop has another number of updates than it had."""
        return self.is_of_others and (self.splits_data or splits_data)

    def words(self, *, splits_data: bool) -> str:
        """Returns what is done, in one sentence."""
        place = f"the script's loop goes on behind update {self.target(splits_data=splits_data)}"
        if not self.is_of_others:
            return f"an earlier resume had another number of ranks: {place}, with other batches"
        if self.is_scaled(splits_data=splits_data):
            place += f" of {self.now} (update {self.updates} of {self.before}: the same data)"
        return (
            f"{self.before} -> {self.now} ranks: weights and optimizer state are shared out anew, "
            f"{place}, with other batches and random numbers"
        )
