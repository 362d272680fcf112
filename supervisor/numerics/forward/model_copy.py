"""A copy of a model that shares nothing with it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.numerics.forward.model_call import one_line
from supervisor.numerics.forward.tensor_tree import tensors_in


def copy_of(model: nn.Module) -> nn.Module:
    """Returns a deep copy; results of earlier passes in its attributes are detached.

    Raises:
        UsageError: a class in it cannot be copied.
    """
    # torch refuses to copy tensors that hang on a graph: what is in the memo is not copied.
    results: dict[int, torch.Tensor] = {
        id(tensor): tensor.detach().clone()
        for module in model.modules()
        for _, tensor in tensors_in(vars(module))
        if not tensor.is_leaf
    }
    try:
        return copy.deepcopy(model, dict(results))
    except Exception as error:  # whatever a user's class raises on copying
        raise UsageError(
            f"model: cannot be copied ({one_line(error)}): keep what cannot be copied out of its "
            "attributes"
        ) from error
