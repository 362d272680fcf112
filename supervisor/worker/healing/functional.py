"""Functional collectives (DTensor's, so FSDP2's): they come below autograd, unlike the others.

Each is made of the collective of the group that it stands for, and is over when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

NAMESPACE, KEY = "_c10d_functional", "CPU"


def operations() -> dict[str, Callable[..., Any]]:
    """Returns name → how it is made here; others are seen by their traces (`bypassed`)."""
    return {
        "all_reduce": lambda given, op, name: _all_reduce(_copy(given), op, name),
        "all_reduce_": lambda given, op, name: _all_reduce(given, op, name),
        "all_gather_into_tensor": _all_gather,
        "reduce_scatter_tensor": _reduce_scatter,
        "broadcast": lambda given, source, name: _broadcast(_copy(given), source, name),
        "broadcast_": lambda given, source, name: _broadcast(given, source, name),
    }


def bypassed(group: Any) -> bool:
    """Whether something was exchanged in a group of the script itself."""
    try:
        return int(group._get_sequence_number_for_group()) > 0
    except RuntimeError:
        return False


@contextmanager
def _seen() -> Iterator[None]:
    """Within it the operations of groups come by, whatever the caller has switched off."""
    autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
    include = torch._C._dispatch_tls_local_include_set() | autograd
    exclude = torch._C._dispatch_tls_local_exclude_set() - autograd
    with torch.no_grad(), torch._C._ForceDispatchKeyGuard(include, exclude):
        yield


def _group(name: str) -> Any:
    c10d: Any = torch._C._distributed_c10d
    return c10d._resolve_process_group(name)


def _operator(name: str) -> Any:
    return getattr(torch.distributed.ReduceOp, name.upper())


@_seen()
def _all_reduce(tensor: torch.Tensor, op: str, name: str) -> torch.Tensor:
    _group(name).allreduce([tensor], _operator(op)).wait()
    return tensor


@_seen()
def _broadcast(tensor: torch.Tensor, source: int, name: str) -> torch.Tensor:
    _group(name).broadcast(tensor, source).wait()
    return tensor


@_seen()
def _all_gather(given: torch.Tensor, size: int, name: str) -> torch.Tensor:
    got = given.new_empty([given.shape[0] * size, *given.shape[1:]])
    _group(name)._allgather_base(got, given.contiguous()).wait()
    return got


@_seen()
def _reduce_scatter(given: torch.Tensor, op: str, size: int, name: str) -> torch.Tensor:
    got = given.new_empty([given.shape[0] // size, *given.shape[1:]])
    options = torch.distributed.ReduceScatterOptions()
    options.reduceOp = _operator(op)
    _group(name)._reduce_scatter_base(got, given.contiguous(), options).wait()
    return got


def _copy(given: torch.Tensor) -> torch.Tensor:
    return given.clone(memory_format=torch.contiguous_format)
