"""What the script has set for its whole process, to which no variable of it leads."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from supervisor.training_state.census.left_out import is_of_the_process, is_torchs

_AT_FIRST = dict(os.environ)
_HOOKS: dict[str, tuple[Any, str]] = {
    "hooks_before_forwards": (modules, "_global_forward_pre_hooks"),
    "hooks_after_forwards": (modules, "_global_forward_hooks"),
    "hooks_before_backwards": (modules, "_global_backward_pre_hooks"),
    "hooks_after_backwards": (modules, "_global_backward_hooks"),
    "hooks_before_updates": (optimizers, "_global_optimizer_pre_hooks"),
    "hooks_after_updates": (optimizers, "_global_optimizer_post_hooks"),
}
_COMPILERS = ("_TORCHINDUCTOR_", "TORCHINDUCTOR_")
"""Torch tells its compiled code so where things lie in this process."""
_TYPE, _NUMPY, _LOGGER, _VARIABLE = "default_dtype", "numpy_errors", "logger", "environment_"


class ProcessWide(Mapping[str, Any]):
    """Hooks for all modules and optimizers, variables of the environment that were set since the
    worker began, the type of new tensors, what NumPy does about overflows, and the root logger."""

    def __iter__(self) -> Iterator[str]:
        yield from (_TYPE, _NUMPY, _LOGGER)
        yield from (name for name in _HOOKS if self[name])
        changed = (
            key
            for key, text in os.environ.items()
            if _AT_FIRST.get(key) != text and not key.startswith(_COMPILERS)
        )
        yield from (_VARIABLE + key for key in changed)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name in _HOOKS:
            owner, attribute = _HOOKS[name]
            return tuple(hook for hook in getattr(owner, attribute).values() if _is_scripts(hook))
        if name == _TYPE:
            return str(torch.get_default_dtype()).removeprefix("torch.")
        if name == _NUMPY:
            return dict(np.geterr())
        return logging.root if name == _LOGGER else os.environ[name.removeprefix(_VARIABLE)]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == _TYPE:
            torch.set_default_dtype(getattr(torch, value))
        elif name == _NUMPY:
            np.seterr(**value)
        elif name.startswith(_VARIABLE):
            os.environ[name.removeprefix(_VARIABLE)] = value
        else:
            raise KeyError(name)


def _is_scripts(hook: Any) -> bool:
    return not is_torchs(hook) and not is_of_the_process(getattr(hook, "__func__", hook))
