"""Runs a model for inspection and restores what that changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from supervisor.training_state.module_attributes import module_attributes, put_back_attributes


@contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Restores buffers, attributes of modules, and the random state."""
    attributes = module_attributes(model)
    tensors = [
        (vars(module), name, value, value._version, value.detach().clone())
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        try:
            yield
        finally:
            put_back_attributes(model, attributes)
            with torch.no_grad():
                for owner, name, value, version, kept in tensors:
                    owner[name] = value
                    if value._version != version:
                        value.copy_(kept)
                for buffer, kept in buffers:
                    buffer.copy_(kept)
