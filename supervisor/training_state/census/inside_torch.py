"""What modules, optimizers, loaders and tasks hold beside what torch's own state tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from supervisor.training_state.census.left_out import assigned_by, is_pythons_own, is_torchs
from supervisor.training_state.census.place import Place, write_attribute, write_item
from supervisor.training_state.exchange_handles import came_of
from supervisor.training_state.gradient_hook import hook_of_script

_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_load_state_dict_pre_hooks"),
)
_OF_OPTIMIZER = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_PARTS_OF_MODULE = frozenset(vars(nn.Module()))
_OF_SCHEDULES = frozenset({"step", "_opt_called"})
"""What torch's schedules write to an optimizer."""
_OF_SPARSE: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_LOADERS_PLACE = ("_dataset", "_index_sampler", "_sampler_iter", "_num_yielded", "_rcvd_idx")


def of_module(path: str, module: nn.Module) -> Iterator[Place]:
    for name, own in list(vars(module).items()):
        if name in ("_parameters", "_buffers", "_modules"):
            write = write_item if name == "_buffers" else None
            for key, item in list(own.items()):
                yield Place(f"{path}.{key}", item, own, key, write)
        elif name in _HOOKS:
            for number, hook in enumerate(list(own.values())):
                if not is_torchs(hook):
                    yield Place(f"{path}.{name}[{number}]", hook)
        elif name not in _PARTS_OF_MODULE and not is_pythons_own(name):
            yield Place(f"{path}.{name}", own, vars(module), name, write_item)
    if isinstance(module, torch.jit.ScriptModule):
        yield from _of_script_module(path, module)


def _of_script_module(path: str, module: Any) -> Iterator[Place]:
    """Attributes of a module that `torch.jit.script` has made: they are in C++."""
    known = getattr(module, "_concrete_type", None)
    for name in known.get_attributes() if known is not None else ():
        own = module._c  # to set it on the module would only hide the one that its forward reads
        yield Place(f"{path}.{name}", own.getattr(name), own, name, _write_in_script_module)


def _write_in_script_module(own: Any, name: Any, value: Any) -> None:
    own.setattr(name, value)


def of_tensor(path: str, tensor: torch.Tensor) -> Iterator[Place]:
    """What the script keeps on a tensor (`p.average = ...`), its hooks, and the parts of a sparse
    one."""
    with torch._C.DisableTorchFunctionSubclass():
        layout = tensor.layout
        hooks = getattr(tensor, "_backward_hooks", None) or {}
        after = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    for part in _OF_SPARSE.get(layout, ()):
        yield Place(f"{path}.{part}", getattr(tensor.detach(), part)())
    for name, item in list(vars(tensor).items()):
        yield Place(f"{path}.{name}", item, tensor, name, write_attribute)
    for number, hook in enumerate([*hooks.values(), *map(hook_of_script, after.values())]):
        if not is_torchs(hook):
            yield Place(f"{path}.hooks[{number}]", hook)


def of_optimizer(path: str, optimizer: torch.optim.Optimizer) -> Iterator[Place]:
    """What an optimizer keeps beside its state: slow weights, averages, what the script has put on
    it. What a class of torch's has written there belongs to its state."""
    kinds = [kind for kind in type(optimizer).__mro__ if str(kind.__module__).startswith("torch.")]
    torchs = _OF_SCHEDULES.union(*map(assigned_by, kinds))
    for name in _OF_OPTIMIZER:
        for number, hook in enumerate(list(getattr(optimizer, name, {}).values())):
            if not is_torchs(hook):
                yield Place(f"{path}.{name}[{number}]", hook)
    for name, item in list(vars(optimizer).items()):
        if name not in torchs and not is_pythons_own(name):
            yield Place(f"{path}.{name}", item, optimizer, name, write_attribute)


def of_handle(path: str, handle: Any) -> Iterator[Place]:
    """What an exchange between ranks has brought, or another task of torch; nothing before that.

    An exchange tells of its tensors alone: not every backend lists them.
    """
    value = came_of(handle)
    if isinstance(handle, torch._C.Future):
        if value is not None:
            yield Place(f"{path}.value", value)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield Place(f"{path}.value[{number}]", item)


def of_loader(path: str, iterator: Any) -> Iterator[Place]:
    """Where an iterator with workers stands. Which of their batches have arrived, and for which
    they were asked, belongs to this process's workers and is never written."""
    for name in _LOADERS_PLACE:
        if name in vars(iterator):
            yield Place(f"{path}.{name}", vars(iterator)[name])
