"""How far the training has come, and what is known of the step under way.

What the script has been seen to use. The `torch.autocast` context that the training is in. Warnings
of this worker, with the step at which they come. What the user is told where the recording of a run
comes to a limit. Ways to train that a resume would not bring back exactly, and that are refused for
it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module

from supervisor.codes import Warned
from supervisor.events.event import JournalEvent
from supervisor.events.state_events import WarningEvent
from supervisor.storage.journal.journal import Journal
from supervisor.storage.steps.step_rows import MAX_NAMES, OBSERVED_SLOTS
from supervisor.worker.core.graphs_across import GraphsAcross
from supervisor.worker.core.step_probe import StepProbe


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


OLDER_CASTS = (
    "torch.autocast was on before earlier updates: its casts of the weights as they were then "
    "are in no checkpoint"
)
CASTS_STAY = (
    "torch.autocast is switched on once around several updates: it keeps its casts of the weights "
    "until it is left, so the forwards do not see the updates. Enter it anew for each step"
)


class AutocastContext:
    """Knows since when torch keeps casts of weights: until the outermost context is left."""

    def __init__(self) -> None:
        self._entered_at = 0

    def enters(self, steps: int) -> None:
        """Called before a context is entered, in the training's thread.

        Args:
            steps: done so far.
        """
        if not _depth():
            self._entered_at = steps

    def has_older_casts(self, steps: int) -> bool:
        """Whether the context under way was entered before the last of some steps was done, or
        nothing will clear the casts: autocast was switched on without one.

        Args:
            steps: that count.
        """
        if not steps or not torch.is_autocast_cache_enabled():
            return False
        is_on: bool = torch._C._is_any_autocast_enabled()
        return self._entered_at < steps if _depth() else is_on


def _depth() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


@dataclass(slots=True)
class Progress:
    """Written by whoever answers the training hooks, read by every part.

    Attributes:
        probe: what was seen of the step under way.
        has_started: a module or an optimizer was seen in the live run.
        steps_done: steps of this training, those before a resume included.
        replayed: steps that a fast-forward has come to.
        last_batch: the newest batch of a loader.
        grads_matter: the step began with gradients of an earlier backward (accumulation), or it was
            not looked whether it did.
        step_is_begun: a part of the step was computed before the forward of this boundary.
        at_update: boundaries are at the end of an update (`BoundaryClock`).
        update_result: what the update returns at whose end a boundary is; the script has it in no
            variable yet.
        can_replay: the replay log tells how the script came here, so a resume can be exact.
        loop_shift: updates of the script's own loop beyond `steps_done`: it began again, or had
            another number of ranks.
        is_counted: no replay log tells how the script came here, but its updates were counted.
        replay_lost: why it does not, as a resume says it; empty while nothing special is known.
        graphs: that the script keeps across updates.
        graph_replays: of CUDA graphs in this process, outside of forwards, backwards and updates.
        autocast: the context that the training is in.
    """

    probe: StepProbe
    has_started: bool = False
    steps_done: int = 0
    replayed: int = 0
    last_batch: Any = None
    grads_matter: bool = False
    step_is_begun: bool = False
    at_update: bool = False
    update_result: Any = None
    can_replay: bool = True
    replay_lost: str = ""
    loop_shift: int = 0
    is_counted: bool = False
    graphs: GraphsAcross = field(default_factory=GraphsAcross)
    graph_replays: int = 0
    autocast: AutocastContext = field(default_factory=AutocastContext)

    def replays(self, steps: int) -> None:
        """A fast-forward has come to so many steps."""
        self.replayed = steps

    def boundaries_at_updates(self) -> None:
        """From here on the boundary of a step is at the end of its update."""
        self.at_update, self.step_is_begun = True, False

    def lose_replay(self, why: str = "") -> None:
        """From here on no resume is exact."""
        self.can_replay = False
        self.replay_lost = self.replay_lost or why

    @property
    def position(self) -> int:
        """Steps done, live or replayed."""
        return max(self.steps_done, self.replayed)

    def has_begun(self) -> bool:
        """Whether a step was made or replayed."""
        return self.position > 0


class RunWarnings:
    """Called with a message: writes it to the journal of this rank."""

    def __init__(self, journal: Journal, progress: Progress) -> None:
        self._journal = journal
        self._progress = progress

    def write(self, event: JournalEvent) -> bool:
        """Writes any other event; returns as `Journal.write`."""
        return self._journal.write(event)

    def __call__(self, message: str, *, aloud: bool = False, found: Warned | None = None) -> None:
        """`aloud`: the parent tells it at the terminal too. `found`: a code for readers."""
        step = self._progress.steps_done
        self._journal.write(WarningEvent(step=step, message=message, aloud=aloud, found=found))


class RecordingLimits:
    """Each method is called by the part that comes to the limit, at most once each."""

    def __init__(self, progress: Progress, warn: RunWarnings) -> None:
        self._progress = progress
        self._warn = warn

    def value_left_out(self, name: str) -> None:
        self._warn(
            f"observed value '{name}': there are {MAX_NAMES} other names already: it and further "
            "new ones are judged by detectors, but not recorded: give values fewer names"
        )

    def values_thinned(self, apart: int) -> None:
        self._warn(
            f"observed values are near their disk budget: those beyond the first {OBSERVED_SLOTS} "
            f"names are kept of every {apart}th step only: raise observed_max_gib, or observe less",
            aloud=True,
        )

    def files_unknown(self, why: str) -> None:
        self._warn(f"what the script does with its files is not all recorded ({why})", aloud=True)

    def replay_log_full(self, why: str) -> None:
        if self._progress.can_replay:  # else no resume is exact anyway
            step = self._progress.steps_done
            lost = f"what a resume must know is no longer recorded from step {step} on: {why}"
            self._progress.lose_replay(lost)
            self._warn(f"{lost}: later resumes are approximate", aloud=True)


USAGE = 64


def refuse_fsdp1(module: Module) -> None:
    """Called with each outermost module of several ranks, before its first forward.

    Raises:
        SystemExit: it holds FSDP1's flat parameters, which are sometimes whole and sometimes a
            shard: no state of them can be taken from outside.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    kind = getattr(fsdp, "FullyShardedDataParallel", None)
    if kind is not None and any(isinstance(part, kind) for part in module.modules()):
        print(
            "supervisor: error: FullyShardedDataParallel: FSDP1 cannot be resumed exactly: use "
            "FSDP2, `torch.distributed.fsdp.fully_shard`",
            file=sys.stderr,
        )
        raise SystemExit(USAGE)
