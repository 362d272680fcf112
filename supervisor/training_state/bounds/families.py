"""Which optimizer belongs to which family."""

from __future__ import annotations

import torch

from supervisor.training_state.bounds.adam_family import Adam, ForeignAdam, NAdam, RAdam
from supervisor.training_state.bounds.adamax import Adamax
from supervisor.training_state.bounds.norm_family import SGD, Lion
from supervisor.training_state.bounds.optimizer_family import OptimizerFamily
from supervisor.training_state.bounds.scaled_family import Adadelta, Adagrad, RMSprop, Rprop
from supervisor.training_state.bounds.spectral_family import Muon

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
if hasattr(torch.optim, "Muon"):  # torch before 2.9
    _TORCH[torch.optim.Muon] = Muon()
_LION, _ADAM = Lion(), ForeignAdam()
_OF_ADAM = frozenset(
    {
        "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable",
        "differentiable", "fused", "decoupled_weight_decay", "correct_bias", "bias_correction",
        "caution", "corrected_weight_decay", "max_lr_snapshot", "clipping_threshold",
    }
)  # fmt: skip
"""Settings of optimizers that do nothing now and then that Adam does not do."""


def family_of(optimizer: torch.optim.Optimizer) -> OptimizerFamily | None:
    """Returns the family whose algebra one of torch's own optimizers has; None if it is not known.

    A class derived from one of torch's may do anything in its own ``step``, so the class itself
    counts, and its ``step`` must be torch's.
    """
    family = _TORCH.get(type(optimizer))
    if family is None or ("step" in vars(optimizer) and not _is_scheduled(optimizer)):
        return None
    return family


def candidate_for(optimizer: torch.optim.Optimizer) -> OptimizerFamily | None:
    """Returns the family that another optimizer may belong to, which its updates have to prove.

    Lion by the name of its class, Adam by its settings.
    """
    if type(optimizer) in _TORCH:
        return None
    is_lion = "lion" in type(optimizer).__name__.lower()
    family: OptimizerFamily = _LION if is_lion else _ADAM
    if not is_lion and not optimizer.defaults.keys() <= _OF_ADAM:
        return None
    return (
        family
        if all(set(family.keys) <= group.keys() for group in optimizer.param_groups)
        else None
    )


def _is_scheduled(optimizer: torch.optim.Optimizer) -> bool:
    """A scheduler wraps ``step`` on the instance, to count its calls."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")
