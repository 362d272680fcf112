"""Updates of the weights that supervision cannot see, told at the end of the process."""

from __future__ import annotations

ANOTHER_TRAINING = 20
"""Halves of a GAN, or an actor and its critic, step fewer times in a row."""

MANY_BACKWARDS = 100
"""Before the first update: more than gradients are usually accumulated over."""

NO_STEP_YET = (
    f"{MANY_BACKWARDS} backward passes and no step of a torch.optim.Optimizer yet: as long as none "
    "steps, nothing is supervised. Optimizers that are not torch's (fastai's) are not seen"
)

GRAPHS_REPLAYED = (
    "the script replays CUDA graphs: updates within them are not counted, judged or saved, and no "
    "resume is exact. Graphs of forward and backward alone (torch.cuda.make_graphed_callables, "
    'torch.compile with mode="reduce-overhead") are seen'
)


def tell_unseen_updates(*, steps: int, backward_calls: int, updates_by_others: int) -> str | None:
    """Returns what was not supervised and what to do; None if everything was.

    A loop that changes its weights by hand (``p.data.add_``) shows us no step, and the optimizer of
    a second training is taken for the second one of the first.

    Args:
        steps: updates of the optimizer that leads.
        backward_calls: since its last update.
        updates_by_others: the same, of other optimizers.
    """
    if steps and updates_by_others >= ANOTHER_TRAINING:
        return (
            f"{updates_by_others} updates of another optimizer came after the last one of the "
            "first: that training was not supervised. Run one training in a process"
        )
    if not steps and backward_calls > 1:
        return (
            f"{backward_calls} backward passes but no step of a torch.optim.Optimizer: nothing was "
            "supervised. Weights that are changed by hand are not seen: use an optimizer"
        )
    return None
