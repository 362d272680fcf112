"""Looks closely at one step of a replay: activations, gradients, what is not finite, and where."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from supervisor.errors import SupervisorError
from supervisor.numerics.nan_locator import find_nonfinite
from supervisor.storage.private_files import write_json
from supervisor.training_state.registry import Registry
from supervisor.worker.anomaly_scene import named_tensors
from supervisor.worker.culprit import culprit_sample

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

    def begin(self, step: int, capture: str | None = None) -> None:
        """Called at the boundary before the step, within its first forward."""
        self._looked = False
        self._seen = {
            "step": step,
            "sample": None,
            "sample_reason": "",
            "nonfinite": None,
            "problem": "",
            "same_batch": self._is_captured(capture),
            "gradients": {},
            "activations": {},
        }
        for name, model in self._registry.models.items():
            self._handles.append(
                model.register_forward_pre_hook(self._before_root, with_kwargs=True)
            )
            for path, module in list(model.named_modules())[:MAX_MODULES]:
                hook = self._activation_hook(path or name)
                self._handles.append(module.register_forward_hook(hook))
            for path, parameter in model.named_parameters():
                if parameter.requires_grad:
                    hook_of = self._gradient_hook(path)
                    self._handles.append(parameter.register_post_accumulate_grad_hook(hook_of))

    def end(self) -> None:
        """Called at the next boundary; does nothing if no step is being looked at."""
        if self._seen:
            self._write()
            self._seen = {}
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

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
        batch: Any = kwargs if kwargs and not args else args
        try:
            if not (kwargs and args):
                self._seen["nonfinite"] = find_nonfinite(model, batch).to_dict()
        except SupervisorError as error:
            self._seen["problem"] = str(error)
        sample, reason = culprit_sample(model, args, kwargs, self._last_batch())
        self._seen["sample"], self._seen["sample_reason"] = sample, reason
        self._write()

    def _activation_hook(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            if path in self._seen["activations"]:
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
