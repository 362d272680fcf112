"""Which optimizer belongs to which family."""

from __future__ import annotations

import torch

from supervisor.training_state.bounds.adam_family import Adam, NAdam, RAdam
from supervisor.training_state.bounds.adamax import Adamax
from supervisor.training_state.bounds.norm_family import SGD, Lion
from supervisor.training_state.bounds.optimizer_family import OptimizerFamily
from supervisor.training_state.bounds.scaled_family import Adadelta, Adagrad, RMSprop, Rprop

_TORCH: dict[type[torch.optim.Optimizer], OptimizerFamily] = {
    torch.optim.Adam: Adam(),
    torch.optim.AdamW: Adam(),
    torch.optim.NAdam: NAdam(),
    torch.optim.RAdam: RAdam(),
    torch.optim.Adamax: Adamax(),
    torch.optim.Adagrad: Adagrad(),
    torch.optim.RMSprop: RMSprop(),
    torch.optim.Adadelta: Adadelta(),
    torch.optim.Rprop: Rprop(),
    torch.optim.SGD: SGD(),
}
_LION = Lion()


def family_of(optimizer: torch.optim.Optimizer) -> OptimizerFamily | None:
    """Returns the family whose algebra `optimizer` has; None if it is not known.

    A class derived from one of torch's may do anything in its own ``step``, so the class itself
    counts, and its ``step`` must be torch's.
    """
    kind = type(optimizer)
    family = _TORCH.get(kind)
    if family is not None:
        return family if "step" not in vars(optimizer) or _is_scheduled(optimizer) else None
    if kind.__name__ == "Lion" and all(
        {"lr", "betas", "weight_decay"} <= group.keys() for group in optimizer.param_groups
    ):
        return _LION
    return None


def is_by_name(family: OptimizerFamily) -> bool:
    """Whether only the name of its class speaks for it."""
    return family is _LION


def _is_scheduled(optimizer: torch.optim.Optimizer) -> bool:
    """A scheduler wraps ``step`` on the instance, to count its calls."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")
