"""Whether a replay still is the recorded run."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import StepMark

_COMPARED = (
    ("step", "step number"),
    ("lr", "learning rate"),
    ("backward_calls", "number of backward calls"),
    ("forward_calls", "number of forward calls"),
    ("batch_signature", "batch"),
)


class ReplayComparison:
    """Counts the steps of a replay, and keeps the first difference from the recorded run.

    As a context manager it takes a `ReplayError` for such a difference.

    Args:
        target: steps done at the checkpoint's boundary.
        told: called with the first difference.

    Attributes:
        steps_done: steps that the replay has passed.
        mismatch: the first difference; None while there is none.
    """

    def __init__(
        self,
        target: int,
        told: Callable[[str], object] = lambda why: None,
        mismatch: str | None = None,
    ) -> None:
        self.target = target
        self.steps_done = 0
        self.mismatch = mismatch
        self._told = told

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ReplayError):
            return False
        self.disprove(f"step {self.steps_done}: {error}")
        return True

    @property
    def holds(self) -> bool:
        return self.mismatch is None

    def disprove(self, why: str) -> None:
        """This is not the recorded run: the next boundary is as good a place as any to go on."""
        if self.mismatch is None:
            self.mismatch = why
            self._told(why)

    def compare(self, recorded: bytes, now: tuple[int, float, int, int, int]) -> None:
        """Compares a step, as it lies on the replay log, with one as `StepMark.pack` takes it.

        Raises:
            ReplayError: they differ.
        """
        if recorded == StepMark.pack(*now):
            return
        mark, here = StepMark.unpack(recorded), StepMark(*now)
        for name, what in _COMPARED:
            if getattr(mark, name) != getattr(here, name):
                told = f"{getattr(here, name)}, the recorded run had {getattr(mark, name)}"
                raise ReplayError(f"{what} is {told}")
