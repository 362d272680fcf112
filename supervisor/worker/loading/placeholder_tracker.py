"""Sees to it that no value of a batch that was left out reaches the script.

A fast-forward hands out other batches of the same shapes. That changes nothing as long as their
values stay inside tensors, for what is read from tensors comes off the replay log, and tensors are
put back at the target. This mode follows the placeholders, and all that is computed from them,
through every operation of torch, and calls `on_leak` where a value would come out: in a shape, in
an array, in a file, or in a tensor that nothing puts back.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from supervisor.worker.core.call_state import CallState
from supervisor.worker.ranks.silenced_collectives import COLLECTIVES
from supervisor.worker.reads.patches_reads import watch_storage_access

_TORCHS_OWN = frozenset({"aten", "prim", "prims"})
_DRAWS_BY_VALUE = frozenset(
    {"poisson", "binomial", "multinomial", "_standard_gamma", "_sample_dirichlet"}
)
"""How often these draw depends on the values that they are given."""
_SWEEP = 4096
_storage_of = torch.Tensor.untyped_storage  # before it is patched


class _Then:
    """A context manager that has been entered, and what is called behind its end."""

    def __init__(self, entered: Any, then: Callable[[], None]) -> None:
        self._entered = entered
        self._then = then

    def __exit__(self, *raised: Any) -> None:
        self._entered.__exit__(*raised)
        self._then()


class PlaceholderTracker(TorchDispatchMode):
    """Active from `start` to `end`, in the training's thread.

    Args:
        call_state: what happens inside regions is not the script's.
        on_leak: called with what the script does; it must not return while `is_active`.
    """

    def __init__(self, call_state: CallState, on_leak: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handed_out = 0
        self.is_active = False
        self._call_state = call_state
        self._on_leak = on_leak
        self._batches: dict[int, StorageWeakRef] = {}
        self._derived: dict[int, StorageWeakRef] = {}
        self._restore: Callable[[], None] = lambda: None
        self._sweep_at = _SWEEP

    def start(self) -> None:
        self.is_active = True
        self._restore = watch_storage_access(self._asked)
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Called at the target. May be called again; then it does nothing."""
        if not self.is_active:
            return
        self.is_active = False
        self._restore()
        if torch.is_inference_mode_enabled():
            self._leave_behind_inference_mode()
        else:
            self._leave()

    def _leave(self) -> None:
        inference = torch.is_inference_mode_enabled()
        transforms = torch._C._functorch.peek_interpreter_stack()
        stack = _get_current_dispatch_mode_stack()
        if not inference and transforms is None and stack[-1:] == [self]:
            self.__exit__(None, None, None)
        # Else it stands within one of the script's, and lets everything pass.

    def _leave_behind_inference_mode(self) -> None:
        """Inference mode, where it ends, has torch call the modes that there were when it began."""
        for one in gc.get_objects():
            if type(one) is torch.inference_mode and hasattr(one, "_inference_mode_context"):
                context: Any = one
                context._inference_mode_context = _Then(
                    context._inference_mode_context, self._leave
                )

    def hand_out(self, batch: Any) -> None:
        """Every batch that stands for another comes by here."""
        self.handed_out += 1
        for leaf in pytree.tree_leaves(batch):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf, self._batches)

    def disproved(self, why: str) -> None:
        """The replay is not the recorded run: that batches are left out may be the reason."""
        if self.is_active:
            self._on_leak(why)

    def left_over(self, put_back: Collection[int]) -> bool:
        """Whether something computed from a stand-in is still there at the target.

        Args:
            put_back: addresses of the memory that holds saved values again.
        """
        if not self.handed_out or not self._alive(put_back):
            return False
        gc.collect()
        return self._alive(put_back)

    def _alive(self, put_back: Collection[int]) -> bool:
        for number in (*self._batches, *self._derived):
            storage = torch.UntypedStorage._new_with_weak_ptr(number)
            if storage is not None and storage.nbytes() and storage.data_ptr() not in put_back:
                return True
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.is_active or self._call_state.depth or not self.handed_out:
            return func(*args, **kwargs)
        given = [t for t in _tensors((args, kwargs)) if self._is_tainted(t)]
        if given:
            fault = self._fault(func, args)
            if fault:
                self._on_leak(f"the script {fault}")
        output = func(*args, **kwargs)
        if given:
            is_exchange = func.namespace in COLLECTIVES
            written = (args, kwargs) if func._schema.is_mutable or is_exchange else ()
            for tensor in _tensors((output, written)):
                self._note(tensor, self._derived)
        return output

    def _fault(self, func: Any, args: Any) -> str:
        name, tags = str(func), func.tags
        if func.namespace in COLLECTIVES:
            return ""  # ranks send nothing in a replay, and one process alone sends to nobody
        if func.namespace not in _TORCHS_OWN:
            return f"calls {name}"
        if torch.Tag.data_dependent_output in tags:
            return f"reads a value by {name}"
        if torch.Tag.dynamic_output_shape in tags and (
            "index" not in name or any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args))
        ):
            return f"takes a shape from values by {name}"
        if func._schema.name.partition("::")[2] in _DRAWS_BY_VALUE:
            return f"draws by value with {name}"
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                info = argument.alias_info
                if info is not None and info.is_write:
                    for tensor in _tensors(value):
                        if self._number(tensor) in self._batches:
                            return f"changes a batch in place by {name}"
        return ""

    def _asked(self, tensor: torch.Tensor, name: str) -> None:
        """The script takes the values of a tensor without an operation of torch."""
        if self.is_active and not self._call_state.depth and self._is_tainted(tensor):
            self._on_leak(f"the script takes values out by {name}")

    def _is_tainted(self, tensor: torch.Tensor) -> bool:
        number = self._number(tensor)
        return number in self._batches or number in self._derived

    def _note(self, tensor: torch.Tensor, where: dict[int, StorageWeakRef]) -> None:
        number = self._number(tensor)
        if number is None or number in where:
            return
        where[number] = StorageWeakRef(_storage_of(tensor))
        if len(where) > self._sweep_at:
            for known in (self._batches, self._derived):
                for gone in [n for n, reference in known.items() if reference.expired()]:
                    del known[gone]
            self._sweep_at = _SWEEP + 2 * len(where)

    def _number(self, tensor: torch.Tensor) -> int | None:
        """Of its memory; never used twice, because it is referred to weakly."""
        try:
            return int(_storage_of(tensor)._cdata)
        except (RuntimeError, NotImplementedError):
            return None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
