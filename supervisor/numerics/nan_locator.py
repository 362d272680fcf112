"""Where the finite range is left first: in a call of a model, or in a running step of a script."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.numerics.figures import figure
from supervisor.numerics.model_call import (
    bare_model,
    call_model,
    is_float,
    one_line,
    state_kept,
    tensors_in,
)
from supervisor.numerics.module_trace import LOSS, ModuleTrace
from supervisor.numerics.op_watch import Birth, OpWatch
from supervisor.records import Plain


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NonfiniteReport(Plain):
    """Where NaN or an infinity came from. All texts are empty when nothing was found.

    Attributes:
        found: whether the outputs, the loss or a gradient are not finite.
        phase: ``input``, ``parameter``, ``forward``, ``loss``, ``backward`` or (of a script's step)
            ``update``.
        module: dotted path; ``(model)`` for the model's own forward, ``(loss)`` outside of it,
            ``(optimizer)`` in an update; for the phases input and parameter the tensor's path.
        module_type: class name.
        operation: ``log``, ``addmm``, ``softmax``; in the backward phase the one whose derivative
            is not finite.
        kernel: the ATen operation itself.
        kind: what happened, snake case: ``log_of_zero``, ``all_masked``, ``zero_variance``,
            ``projection_overflow``, ``vision_input_range``, ``infinite_derivative``, ...
        cause: one sentence.
        fix: what to do.
        values: key figures: ranges of the inputs, zeros, masked rows, variance.
        then: where the infinities first became NaN, if that was elsewhere.
    """

    found: bool
    phase: str = ""
    module: str = ""
    module_type: str = ""
    operation: str = ""
    kernel: str = ""
    kind: str = ""
    cause: str = ""
    fix: str = ""
    values: Mapping[str, float]
    then: str = ""

    def __repr__(self) -> str:
        if not self.found:
            return "No NaN and no infinity in outputs, loss or gradients."
        where = f"{self.module} ({self.module_type})" if self.module_type else self.module
        place = ": ".join(part for part in (self.phase, where, self.operation, self.kind) if part)
        lines = [place, self.cause, self.fix]
        lines += [f"  {name} = {figure(value)}" for name, value in self.values.items()]
        if self.then:
            lines.append(f"It became NaN in {self.then}.")
        return "\n".join(line for line in lines if line)


def first_birth(tensors: Iterable[torch.Tensor], watch: OpWatch) -> Birth | None:
    """Returns the earliest birth of non-finite values in `tensors`, apart from masks."""
    behind = []
    for tensor in tensors:
        if is_float(tensor) and not bool(torch.isfinite(tensor).all()):
            birth = watch.origin(tensor)
            if birth is None:  # made by something that the watch does not see
                culprits = [made for made in watch.births if not made.on_purpose]
                birth = culprits[0] if culprits else None
            if birth is not None and not birth.on_purpose:
                behind.append(birth)
    return min(behind, key=watch.births.index, default=None)


def report_of(birth: Birth) -> NonfiniteReport:
    """Returns the report of a birth, traced back to its source."""
    first = birth
    while first.source is not None and not first.source.on_purpose:
        first = first.source
    assert first.cause is not None  # only births on purpose have none
    return NonfiniteReport(
        found=True,
        phase=first.phase,
        module=first.module,
        module_type=first.module_type,
        operation=first.operation,
        kernel=first.kernel,
        kind=first.cause.kind,
        cause=first.cause.message,
        fix=first.cause.fix,
        values=first.cause.values,
        then="" if birth is first else f"{birth.module}: {birth.operation} ({birth.phase})",
    )


def sick_tensor(phase: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> NonfiniteReport | None:
    """Reports the first tensor with NaN or +infinity; -infinity is used for masks."""
    for path, tensor in tensors:
        if not is_float(tensor) or tensor.is_complex():
            continue
        tensor, name = tensor.detach(), path.lstrip(".") or "batch"
        nans, infinities = int(tensor.isnan().sum()), int(torch.isposinf(tensor).sum())
        if nans or infinities:
            sound = tensor[torch.isfinite(tensor)]
            values = {"nan": float(nans), "inf": float(infinities), "size": float(tensor.numel())}
            if sound.numel():
                values |= {"min": float(sound.min()), "max": float(sound.max())}
            return NonfiniteReport(
                found=True,
                phase=phase,
                module=name,
                kind=f"nonfinite_{phase}",
                cause=f"the {phase} {name} holds {nans} NaN and {infinities} infinite "
                "elements before anything is computed",
                fix="look at the data and its preparation"
                if phase == "input"
                else "go back to a checkpoint from before; an earlier update wrote it",
                values=values,
            )
    return None


def state_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields parameters and buffers with their paths."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def find_nonfinite(
    model: nn.Module, batch: Any, loss_fn: Callable[..., Any] | None = None
) -> NonfiniteReport:
    """Runs one forward and backward pass and finds where NaN or an infinity came from.

    The model, its gradients and the random state are left as they were. Infinities that end in
    finite results (attention masks) do not count. Every operation is checked, so this is slow.

    Args:
        model: in the mode (train or eval) in which it fails.
        batch: what the model takes: a tensor, a tuple of arguments, or a dict of keywords. With a
            `loss_fn` of two arguments the last element of a tuple is the target.
        loss_fn: ``loss_fn(output)`` or ``loss_fn(output, target)``. Without one: the ``loss`` that
            the output carries, else all floating outputs.

    Raises:
        UsageError: not a module, or the forward pass raises before anything is non-finite.
    """
    model = bare_model(model)
    sick = sick_tensor("input", tensors_in(batch)) or sick_tensor("parameter", state_of(model))
    if sick is not None:
        return sick
    trace = ModuleTrace(model)
    watch = OpWatch(trace)
    try:
        with state_kept(model), torch.enable_grad(), trace, watch:
            birth = _passes(model, batch, loss_fn, trace, watch)
    except UsageError:
        raise
    except Exception as error:  # anything that a user's model or loss raises
        culprits = [made for made in watch.births if not made.on_purpose]
        if not culprits:
            raise UsageError(
                f"batch: the pass failed in {trace.module} ({one_line(error)}): "
                f"{_what_to_give(batch, loss_fn)}"
            ) from error
        birth = culprits[0]
    return report_of(birth) if birth else NonfiniteReport(found=False, values={})


def _passes(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any] | None,
    trace: ModuleTrace,
    watch: OpWatch,
) -> Birth | None:
    inputs, target = _split(batch, loss_fn)
    output = call_model(model, inputs)
    outputs = output if loss_fn is None else loss_fn(output, *target)
    trace.mark(outputs, LOSS)
    results = [tensor for _, tensor in tensors_in(outputs) if is_float(tensor)]
    carried = _carried_loss(output) if loss_fn is None else None
    results = [carried] if carried is not None else results
    birth = first_birth(results, watch)
    if birth is not None:
        return birth
    return _backward(results, [p for p in model.parameters() if p.requires_grad], watch)


def _backward(
    results: list[torch.Tensor], parameters: list[nn.Parameter], watch: OpWatch
) -> Birth | None:
    roots = [tensor for tensor in results if tensor.requires_grad]
    if not roots or not parameters:
        return None
    watch.phase = "backward"
    # A mean over each output keeps gradients at a normal size, whatever the number of outputs.
    weights = [torch.full_like(root, 1.0 / max(root.numel(), 1)) for root in roots]
    gradients = torch.autograd.grad(roots, parameters, weights, allow_unused=True)
    return first_birth([gradient for gradient in gradients if gradient is not None], watch)


def _split(batch: Any, loss_fn: Callable[..., Any] | None) -> tuple[Any, tuple[Any, ...]]:
    """Returns what the model takes and what the loss takes beside the output."""
    if loss_fn is None or not _takes_target(loss_fn):
        return batch, ()
    if isinstance(batch, (list, tuple)) and len(batch) > 1:
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return inputs, (batch[-1],)
    return batch, (batch,)


def _what_to_give(batch: Any, loss_fn: Callable[..., Any] | None) -> str:
    if isinstance(batch, (list, tuple)) and (loss_fn is None or not _takes_target(loss_fn)):
        return (
            "all elements went to the model: give the inputs alone, or a loss_fn of output and "
            "target for the last one"
        )
    return "give a batch and a loss_fn as the training has them"


def _takes_target(loss_fn: Callable[..., Any]) -> bool:
    function = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature: losses of torch take two
        return True
    return False


def _carried_loss(output: Any) -> torch.Tensor | None:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) and is_float(loss) else None


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

    def stop(self) -> NonfiniteReport | None:
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
