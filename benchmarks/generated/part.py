"""What a program does beside its training: a piece of text for each place in its loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that people do in training loops.

    A name with ``$`` before it is a variable of the training: it becomes a local name, an
    attribute, an entry of a dictionary, as the program keeps its state.

    Attributes:
        name: unique.
        top: definitions of the module, without variables of the training.
        setup: before the first epoch; model and optimizer are there.
        batch: begins a step; `x` and `y` are there. ``SKIP`` leaves the step out.
        loss: `out` and `loss` are there, backward has not been called.
        gradient: between backward and update.
        after: behind the update; `$step` is the number of updates.
        evaluation: `logits` of the whole validation set and `$value`, its mean loss, are there.
        epoch: ends an epoch.
        end: behind the training.
        alone: of parts with the same word here a program has one at most.
    """

    name: str
    top: str = ""
    setup: str = ""
    batch: str = ""
    loss: str = ""
    gradient: str = ""
    after: str = ""
    evaluation: str = ""
    epoch: str = ""
    end: str = ""
    alone: str = ""
