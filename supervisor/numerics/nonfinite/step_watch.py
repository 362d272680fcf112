"""Watches one running step of a script for the origin of NaN and infinities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from supervisor.numerics.forward.model_call import bare_model
from supervisor.numerics.forward.module_trace import LOSS, ModuleTrace
from supervisor.numerics.forward.tensor_tree import tensors_in
from supervisor.numerics.nonfinite.nonfinite_report import NonfiniteReport, first_birth, report_of
from supervisor.numerics.nonfinite.op_watch import Birth, OpWatch

OPTIMIZER = "(optimizer)"


class StepWatch:
    """Watches a script's own forward, loss, backward and update; computes nothing twice.

    The step gives the same numbers as without it, only slowly. The caller reports backward passes.

    Args:
        models: whose modules to name; with several their keys come before the paths.
        optimizers: those that make the step's updates.
    """

    def __init__(
        self, models: Mapping[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        bare = {name: bare_model(model) for name, model in models.items()}
        self._model = next(iter(bare.values())) if len(bare) == 1 else nn.ModuleDict(bare)
        self._optimizers = list(optimizers)
        self._trace = ModuleTrace(self._model)
        self._watch = OpWatch(self._trace)
        self._birth: Birth | None = None
        self._is_on = False
        self._handles: list[Any] = []

    def prepare(self) -> None:
        """Adds the hooks that name modules; called before the step's first forward."""
        self._trace.__enter__()

    def start(self) -> None:
        """Starts to watch operations; called in a hook before the model's forward."""
        self._trace.settle()
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        self._is_on = True
        for optimizer in self._optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before_update),
                optimizer.register_step_post_hook(self._after_update),
            ]

    def end(self) -> NonfiniteReport | None:
        """Removes everything; returns what was found, None if the step was not watched."""
        self._trace.__exit__(None, None, None)
        if not self._is_on:
            return None
        self._is_on = False
        self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        birth = self._birth or first_birth(self._model.parameters(), self._watch)
        if birth is None and self._watch.phase == "forward":
            # The script may have stopped at the bad loss itself, so that nothing can be asked of it
            birth = next((made for made in self._watch.births if not made.on_purpose), None)
        return report_of(birth) if birth else NonfiniteReport(found=False, values={})

    def before_backward(self, roots: Any) -> None:
        """Called with the tensors that the backward pass starts from."""
        if not self._is_on:
            return
        self._note([tensor for _, tensor in tensors_in(roots)])
        self._trace.mark(roots, LOSS)
        self._watch.phase = "backward"

    def after_backward(self) -> None:
        """Called after a backward pass, even one that failed."""
        if not self._is_on:
            return
        self._watch.phase = "after"
        self._trace.settle()
        self._note([p.grad for p in self._model.parameters() if p.grad is not None])

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._watch.phase, self._trace.outside = "update", OPTIMIZER

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._watch.phase, self._trace.outside = "after", LOSS

    def _note(self, tensors: list[torch.Tensor]) -> None:
        if self._birth is None:
            self._birth = first_birth(tensors, self._watch)
