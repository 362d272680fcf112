"""Looks closely at one step of a replay: activations, gradients, what is not finite, and where.

Which sample of a batch makes a model's output non-finite or absurd. What one of several ranks tries
out by itself: nothing of it may reach the others.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from supervisor.by_identity import ByIdentity
from supervisor.errors import SupervisorError
from supervisor.numerics.model_call import bare_model, copy_of, state_kept
from supervisor.numerics.nan_locator import StepWatch, sick_tensor, state_of
from supervisor.numerics.precision_view import low_precision_of, view_precision
from supervisor.storage.files.private_files import write_json
from supervisor.training_state.registry import Registry
from supervisor.worker.inspection.patches_experiment import hand_over_backward
from supervisor.worker.judging.anomaly_scene import named_tensors
from supervisor.worker.ranks.silenced_collectives import COLLECTIVES

_Test: TypeAlias = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], bool]

OUTLIER = 20.0
"""A sample's largest element, that many times the median sample's: of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultySample:
    """A sample of a batch; `row` is None without one.

    Attributes:
        row: its index in the batch.
        reason: what makes it the guilty one, to follow "sample 3 of the batch:".
        is_odd: its own values are the reason, not only what the model makes of them.
    """

    row: int | None = None
    reason: str = ""
    is_odd: bool = False


def culprit_sample(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    batch: Any,
    *,
    tries: bool = True,
) -> FaultySample:
    """Returns the guilty sample of the batch.

    The inputs are looked at row by row; then the batch is halved until one sample is left whose
    output, or gradient, is not finite. State and generators are afterwards as before.

    Args:
        model, args, kwargs: as it is called.
        batch: of the loader.
        tries: whether the model may be called with parts of the batch.
    """
    handed = [*named_tensors(batch).values(), *named_tensors([args, dict(kwargs)]).values()]
    rows = rows_of(handed)
    if rows is None or rows < 2:
        return FaultySample()
    handed = [t for t in handed if t.dim() and t.shape[0] == rows and t.is_floating_point()]
    for tensor in handed:
        row = _nonfinite_row(tensor)
        if row is not None:
            return FaultySample(row=row, reason="its own values are not finite", is_odd=True)
    outliers = [row for row in map(_outlying_row, handed) if row is not None]
    for sick, what in _TRIED if tries else ():
        with contextlib.suppress(Exception):  # a model that takes no other batch size
            row = _bisect(model, args, kwargs, rows, sick)
            if row is not None:
                reason = f"alone it makes the {what} non-finite"
                return FaultySample(row=row, reason=reason, is_odd=row in outliers)
    if outliers:
        reason = "its values are far from those of all others"
        return FaultySample(row=outliers[0], reason=reason, is_odd=True)
    return FaultySample()


def rows_of(tensors: list[torch.Tensor]) -> int | None:
    """Returns the usual first dimension of tensors, taken as their samples; None without any."""
    sizes = Counter(tensor.shape[0] for tensor in tensors if tensor.dim())
    return sizes.most_common(1)[0][0] if sizes else None


def _nonfinite_row(tensor: torch.Tensor) -> int | None:
    bad = ~torch.isfinite(tensor).reshape(tensor.shape[0], -1).all(dim=1)
    found = bad.nonzero().flatten()
    return int(found[0]) if 0 < len(found) < tensor.shape[0] else None


def _outlying_row(tensor: torch.Tensor) -> int | None:
    largest = tensor.detach().abs().float().reshape(tensor.shape[0], -1).amax(dim=1)
    row = int(largest.argmax())
    usual = float(largest.median())
    return row if usual > 0 and float(largest[row]) > OUTLIER * usual else None


def _bisect(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int, sick: _Test
) -> int | None:
    def is_sick(first: int, last: int) -> bool:
        def cut(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows:
                return value[first:last]
            return value

        return sick(model, pytree.tree_map(cut, args), pytree.tree_map(cut, dict(kwargs)))

    first, last = 0, rows
    with state_kept(model):
        if not is_sick(first, last):
            return None
        while last - first > 1:
            middle = (first + last) // 2
            if is_sick(first, middle):
                last = middle
            elif is_sick(middle, last):
                first = middle
            else:
                return None  # only together
        whole = is_sick(*((1, rows) if first == 0 else (0, first)))
    return None if whole else first  # all are sick: it is not the sample


def _bad_output(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    with torch.no_grad():
        return not _all_finite(named_tensors(model(*args, **kwargs)).values())


def _bad_gradient(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    with torch.enable_grad():
        outputs = named_tensors(model(*args, **kwargs)).values()
        roots = [t.float().sum() for t in outputs if t.requires_grad]
        weights = [p for p in model.parameters() if p.requires_grad]
        if not roots or not weights:
            return False
        gradients = torch.autograd.grad(roots, weights, allow_unused=True)
    return not _all_finite(g for g in gradients if g is not None)


_TRIED: tuple[tuple[_Test, str], ...] = ((_bad_output, "output"), (_bad_gradient, "gradient"))


def _all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def without_others() -> contextlib.AbstractContextManager[Any]:
    """Within it a collective raises: the others, who try out something else, would not come."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return contextlib.nullcontext()
    return _NoCollectives()  # type: ignore[no-untyped-call]


class _NoCollectives(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch._dynamo is imported, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in COLLECTIVES:
            raise RuntimeError(f"{func} needs the other ranks")
        return func(*args, **(kwargs or {}))


def is_sharded(model: nn.Module) -> bool:
    """Whether a forward needs the other ranks for its weights (FSDP2, tensor parallelism)."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and any(isinstance(p, tensor.DTensor) for p in model.parameters())


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model whose forward needs no other rank, where it is wrapped in DDP."""
    return model.module if isinstance(model, DistributedDataParallel) else model


MAX_MODULES = 300


class Inspection:
    """Writes ``<folder>/step_<n>.json`` for each step that it is asked to look at.

    Hooks stay for one step; nothing that it does changes the step. A step that ends in an
    exception leaves what was seen until then.

    Args:
        folder: where the files go.
        last_batch: gives the newest batch of a loader, None without one.
    """

    def __init__(self, folder: Path, registry: Registry, last_batch: Callable[[], Any]) -> None:
        self._folder = folder
        self._registry = registry
        self._last_batch = last_batch
        self._handles: list[RemovableHandle] = []
        self._seen: dict[str, Any] = {}
        self._looked = False
        self._probing = False
        self._watch: StepWatch | None = None
        self._take_off: Callable[[], None] | None = None
        self._copies: ByIdentity[nn.Module, nn.Module] = ByIdentity()

    def start(self, step: int, capture: str | None = None) -> None:
        """Called at the boundary before the step, within its first forward."""
        self._looked = False
        self._seen = {
            "step": step,
            "sample": None,
            "sample_reason": "",
            "sample_is_odd": False,
            "rows": None,
            "nonfinite": None,
            "precision": None,
            "same_batch": self._is_captured(capture),
            "gradients": {},
            "activations": {},
        }
        # What one rank asked of shards all others would have to ask, too.
        is_whole = not any(map(is_sharded, self._registry.models.values()))
        if is_whole:
            self._copies = _copies_in_low_precision(self._registry.models.values())
            self._watch = StepWatch(self._registry.models, self._registry.optimizers.values())
            self._watch.prepare()
            self._take_off = hand_over_backward(
                self._watch.before_backward, self._watch.after_backward
            )
        for name, model in self._registry.models.items():
            hook_before = model.register_forward_pre_hook(
                self._before_root, prepend=True, with_kwargs=True
            )
            self._handles.append(hook_before)
            if not is_whole:
                continue
            for path, module in list(model.named_modules())[:MAX_MODULES]:
                hook = self._activation_hook(path or name)
                self._handles.append(module.register_forward_hook(hook))
            for path, parameter in model.named_parameters():
                if parameter.requires_grad:
                    hook_of = self._gradient_hook(path)
                    self._handles.append(parameter.register_post_accumulate_grad_hook(hook_of))

    def stop(self) -> None:
        """Called at the next boundary and at the process's end; nothing if no step is looked at."""
        found = self._watch.stop() if self._watch is not None else None
        self._watch = None
        if self._take_off is not None:
            self._take_off()
            self._take_off = None
        if self._seen:
            if found is not None and self._seen["nonfinite"] is None:
                self._seen["nonfinite"] = found.to_dict()
            self._write()
            self._seen = {}
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._copies.clear()

    def _is_captured(self, capture: str | None) -> bool | None:
        """Whether the loader's batch is the captured one; None if that cannot be told."""
        batch = named_tensors(self._last_batch())
        if capture is None or not batch:
            return None
        try:
            for name, tensor in batch.items():
                saved = torch.load(Path(capture) / f"{name}.pt", weights_only=True)
                if not torch.equal(saved.nan_to_num(), tensor.cpu().nan_to_num()):
                    return False
        except (OSError, RuntimeError):
            return None
        return True

    def _before_root(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._looked:
            return
        self._looked = True
        batch, watch = self._last_batch(), self._watch
        sick = (
            sick_tensor("input", named_tensors([args, kwargs], "input").items())
            or sick_tensor("input", named_tensors(batch).items())
            or (None if watch is None else sick_tensor("parameter", state_of(model)))
        )
        if sick is not None:
            self._seen["nonfinite"] = sick.to_dict()
        self._probing = True
        try:
            with without_others():
                tries = watch is not None
                faulty_sample = culprit_sample(unwrapped(model), args, kwargs, batch, tries=tries)
                self._seen["precision"] = _precision(self._copies.get(model), args, kwargs)
        finally:
            self._probing = False
        self._seen |= {
            "sample": faulty_sample.row,
            "sample_reason": faulty_sample.reason,
            "sample_is_odd": faulty_sample.is_odd,
            "rows": rows_of(
                [*named_tensors(batch).values(), *named_tensors([args, kwargs]).values()]
            ),
        }
        self._write()
        if watch is not None:
            watch.start()

    def _activation_hook(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            if self._probing or path in self._seen["activations"]:
                return
            tensors = named_tensors(output)
            tensor = next((t for t in tensors.values() if t.is_floating_point()), None)
            if tensor is not None and tensor.numel():
                figures = _figures(tensor.detach())
                self._seen["activations"][path] = {"type": type(module).__name__, **figures}

        return look

    def _gradient_hook(self, path: str) -> Callable[[torch.Tensor], None]:
        def look(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                norm = torch.linalg.vector_norm(parameter.grad.detach().float())
                self._seen["gradients"][path] = float(norm)

        return look

    def _write(self) -> None:
        write_json(self._folder / f"step_{self._seen['step']}.json", self._seen)


def _copies_in_low_precision(models: Iterable[nn.Module]) -> ByIdentity[nn.Module, nn.Module]:
    """Copies from before our hooks: these must not run in a comparison."""
    copies: ByIdentity[nn.Module, nn.Module] = ByIdentity()
    for model in models:
        with contextlib.suppress(SupervisorError):  # it cannot be copied
            if low_precision_of(model) is not None:
                copies[model] = copy_of(unwrapped(bare_model(model)))
    return copies


def _precision(
    model: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    if model is None:
        return None
    with contextlib.suppress(Exception):  # anything that a user's forward raises, or no memory
        view = view_precision(model, args, kwargs)
        return None if view is None else view.to_dict()
    return None


def _figures(tensor: torch.Tensor) -> dict[str, float]:
    finite = tensor[torch.isfinite(tensor)].float()
    if not finite.numel():
        nothing = math.nan
        return {"mean": nothing, "std": nothing, "largest": nothing, "nonfinite": tensor.numel()}
    return {
        "mean": float(finite.mean()),
        "std": float(finite.std(unbiased=False)),
        "largest": float(finite.abs().max()),
        "nonfinite": tensor.numel() - finite.numel(),
    }
