"""Looks closely at one step of a replay: activations, gradients, what is not finite, and where."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from supervisor.by_identity import ByIdentity
from supervisor.errors import SupervisorError
from supervisor.numerics.forward.model_call import bare_model
from supervisor.numerics.forward.model_copy import copy_of
from supervisor.numerics.nonfinite.nonfinite_report import sick_tensor, state_of
from supervisor.numerics.nonfinite.step_watch import StepWatch
from supervisor.numerics.quantize.precision_view import low_precision_of, view_precision
from supervisor.storage.files.private_files import write_json
from supervisor.training_state.registry import Registry
from supervisor.worker.evidence.anomaly_scene import named_tensors
from supervisor.worker.inspection.alone import is_sharded, unwrapped, without_others
from supervisor.worker.inspection.faulty_sample import culprit_sample, rows_of
from supervisor.worker.interception.patches_backward import hand_over_backward

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

    def begin(self, step: int, capture: str | None = None) -> None:
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

    def end(self) -> None:
        """Called at the next boundary and at the process's end; nothing if no step is looked at."""
        found = self._watch.end() if self._watch is not None else None
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
