"""Which column of a log is what: by the names that trainers give, or by the user's own mapping."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import UsageError

KNOWN = (
    *("step", "loss", "grad_norm", "lr", "loss_scale", "step_time_s", "batch_size", "memory_gib"),
    "others_trained",
    "begins_training",
    "announced",
    "in_environment",
    "restart",
)
"""Columns with a meaning of their own; every other column becomes an observed value."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "step": (
        *("global step", "step", "iteration", "iterations", "iter", "num updates", "updates"),
        *("update", "it", "timesteps", "total timesteps", "current steps", "steps", "total steps"),
    ),
    "loss": ("loss", "lm loss", "total loss", "trl", "train"),
    "grad_norm": ("grad norm", "gradient norm", "gnorm", "gradnorm", "total norm", "norm"),
    "lr": ("lr", "learning rate"),
    "loss_scale": ("loss scale", "grad scale", "scale"),
    "batch_size": ("batch size", "global batch size"),
    "reward": ("reward",),
}
"""What trainers call them, the surest first: Hugging Face (`global_step`, `learning_rate`),
Lightning (`train_loss_step`, `lr-Adam`), fairseq (`num_updates`, `gnorm`), Megatron-LM (`lm loss`),
llm.c (`trl`, `norm`), build-nanogpt (`train`), torchtitan (`loss_metrics/global_avg_loss`),
LLaMA-Factory (`current_steps`), stable-baselines3 (`time/total_timesteps`)."""

NEUTRAL = frozenset(
    [
        *("train", "training", "trainer", "metrics", "global", "step", "avg", "mean", "batch"),
        *("time", "current"),
    ]
)
"""Words that leave a name's meaning as it is: ``train/loss``, ``train_loss_step``."""

OTHER = frozenset(
    ["val", "valid", "validation", "eval", "test", "dev", "epoch", "min", "max", "best", "runtime"]
)
"""Words that make it another quantity: never taken without the user's word."""

MONITOR = frozenset("rlt")
"""stable-baselines3's monitor: reward, length and time of each episode."""

OF_EPISODES = "rollout/ep_rew_mean"
"""Marks its `progress.csv`. A mean of the last 100 episodes is no reward of one: whose neighbours
are that much alike, its falls cannot be told from noise (250 alarms in one of the public logs)."""

COUNTS = frozenset(["num", "count", "std", "time", "data"])
"""Words of names that are no quantity of the training."""

LOSS_LIKE = ("loss", "nll", "elbo", "cost", "objective", "ce", "ppl", "perplexity", "error", "mse")


@dataclass(frozen=True, slots=True)
class Columns:
    """Meaning (`KNOWN`, or an observed value's name) → name of the log's column."""

    by_meaning: Mapping[str, str]

    def meanings(self) -> dict[str, str]:
        return {column: meaning for meaning, column in self.by_meaning.items()}

    def renamed(self) -> str:
        """What was taken for what, where the log has names of its own; empty where it has none."""
        pairs = [f"{name} as {what}" for what, name in self.by_meaning.items() if what != name]
        return f"read {', '.join(pairs)}" if pairs else ""


def find_columns(
    path: Path, columns: Iterable[str], numeric: Iterable[str], mapping: Mapping[str, str]
) -> Columns:
    """Returns what stands where in a log.

    Args:
        path: for messages.
        columns: the names found, in their order.
        numeric: those among them under which a number was seen.
        mapping: meaning → column, as the user says; it beats every guess.

    Raises:
        UsageError: the mapping names a column that is not there, or nothing is known to be the
            loss: the message lists the columns and gives a command to try.
    """
    names, numbers = list(columns), set(numeric)
    for meaning, column in mapping.items():
        if column not in names:
            near = difflib.get_close_matches(column, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"--map {meaning}={column}: {path} has no such column{hint}; it has {_list(names)}"
            )
    found = {name: name for name in KNOWN if name in names}
    taken = set(mapping.values())
    for meaning in NAMES:
        ranked = sorted((rank, n) for n in names if n not in taken and (rank := _rank(meaning, n)))
        # Only names with a number below them: a column of words may be called "step", too.
        ranked = [entry for entry in ranked if entry[1] in numbers] or ranked
        if not ranked or meaning in found:
            continue
        equal = [name for rank, name in ranked if rank == ranked[0][0]]
        if meaning == "loss" and len(equal) > 1 and meaning not in mapping:
            raise UsageError(
                _ask(path, f"{_list(equal)} may each be the loss", names, f"loss={equal[0]}")
            )
        found[meaning] = min(equal, key=names.index)
    if MONITOR.issubset(names):
        found["reward"] = "r"
    found |= mapping
    if not {"loss", "reward"} & found.keys() and "grad_norm" not in mapping:
        what = f"no column is known as the loss in {_list(names)}"
        raise UsageError(_ask(path, what, names, f"loss={_guess(names, numbers)}"))
    return Columns(found)


def _rank(meaning: str, column: str) -> tuple[int, int] | None:
    """How surely a column has this meaning, the surest lowest; None if it does not look so."""
    # W&B's charts are exported as "name of the run - metric".
    words = re.findall(
        r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column.rpartition(" - ")[2]).lower()
    )
    if OTHER.intersection(words):
        return None
    if meaning == "lr" and words[:1] == ["lr"]:  # of a group or an optimizer: lr-Adam/pg1
        return 0, len(words)
    names = NAMES[meaning]
    kept = words
    if " ".join(kept) not in names:
        neutral = NEUTRAL - {"global", "step", "time"} if meaning == "step" else NEUTRAL
        kept = [word for word in words if word not in neutral]
        kept = [word for i, word in enumerate(kept) if word not in kept[:i]]
    name = " ".join(kept)
    # W&B counts its own calls as `_step`.
    return (
        (names.index(name), len(words) - len(kept) + column.startswith("_"))
        if name in names
        else None
    )


def _guess(names: list[str], numbers: set[str]) -> str:
    usable = [n for n in names if n in numbers and not any(_rank(what, n) for what in NAMES)]
    likely = [n for n in usable if not (OTHER | COUNTS).intersection(_words(n))]
    for candidates in (likely, usable):
        for like in LOSS_LIKE:
            found = [
                n for n in candidates if like in _words(n) or (len(like) > 3 and like in n.lower())
            ]
            if found:  # Loss/G/loss/mean rather than Loss/scores/fake/mean
                return min(found, key=lambda name: _last_word(name) != like)
    return next(iter(likely), "COLUMN")


def _last_word(name: str) -> str:
    return next((word for word in reversed(_words(name)) if word not in NEUTRAL), "")


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", name.lower())


def _ask(path: Path, what: str, names: list[str], guess: str) -> str:
    steps = sorted((rank, name) for name in names if (rank := _rank("step", name)))
    pairs = guess + (f",step={steps[0][1]}" if steps and "step" not in names else "")
    command = shlex.join(["supervisor", "backtest", str(path), "--map", pairs])
    return f"{path}: {what}: say which, for example: {command}"


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:40])
    return f"{shown} and {len(names) - 40} more" if len(names) > 40 else shown or "no columns"


STEADY = 10
"""Equal distances in a row that make a cadence; a log without one has none to change."""

FACTOR = 4
"""A few missing rows, or one more at the end of an epoch, are no other cadence."""


class Cadence:
    """Tells a gap in the step numbers, a return to earlier ones, and another distance of the rows.

    What comes next is another part of a run: resumed elsewhere, or averaged over more steps.
    """

    def __init__(self) -> None:
        self._distances: deque[int] = deque(maxlen=STEADY)
        self._previous: int | None = None

    def breaks_at(self, step: int) -> bool:
        """Takes in the step of the next row; whether the rows before are no yardstick for it."""
        previous, self._previous = self._previous, step
        if previous is None:
            return False
        distance = step - previous
        distances = self._distances
        is_steady = len(distances) == STEADY and min(distances) == max(distances)
        usual = distances[-1] if distances else distance
        distances.append(distance)
        if not is_steady:
            return False
        breaks = not usual / FACTOR <= distance <= usual * FACTOR
        if breaks:
            distances.clear()
        return breaks


class StepCount:
    """The step of each row, counted on where a log begins its count anew in every epoch.

    Attributes:
        is_new_run: the epoch went back: several trainings wrote to one log.
    """

    def __init__(self) -> None:
        self.is_new_run = False
        self._offset = 0
        self._distance = 1
        self._step: int | None = None
        self._epoch = math.nan

    def update(self, step: int, epoch: float) -> int:
        """Takes in what a row says of itself; `epoch` is NaN where it says nothing."""
        step_before, epoch_before = self._step, self._epoch
        self.is_new_run = epoch < epoch_before
        if step_before is not None:
            if step + self._offset <= step_before and epoch > epoch_before:
                self._offset = step_before + self._distance - step
            self._distance = max(1, step + self._offset - step_before)
        self._step = step + self._offset
        self._epoch = epoch_before if math.isnan(epoch) else epoch
        return self._step
