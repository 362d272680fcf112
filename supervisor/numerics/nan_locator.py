"""The first module and operation that leaves the finite range (REQUIREMENTS K3)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.numerics.model_call import bare_model, call_model, one_line
from supervisor.numerics.module_trace import LOSS, ModuleTrace
from supervisor.numerics.op_watch import Birth, OpWatch
from supervisor.numerics.table import figure
from supervisor.numerics.tensor_tree import is_float, tensors_in


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NonfiniteReport:
    """Where NaN or an infinity came from. All texts are empty when nothing was found.

    Attributes:
        found: whether the outputs, the loss or a gradient are not finite.
        phase: ``input``, ``parameter``, ``forward``, ``loss`` or ``backward``.
        module: dotted path; ``(model)`` for the model's own forward, ``(loss)`` outside of it;
            for the phases input and parameter the path of the tensor.
        module_type: class name.
        operation: ``log``, ``addmm``, ``softmax``; in the backward phase that whose derivative
            left the finite range.
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

    def to_dict(self) -> dict[str, Any]:
        fields = {field: getattr(self, field) for field in self.__slots__}
        return {**fields, "values": dict(self.values)}

    def __repr__(self) -> str:
        if not self.found:
            return "No NaN and no infinity in outputs, loss or gradients."
        where = f"{self.module} ({self.module_type})" if self.module_type else self.module
        lines = [f"{self.phase}: {where}: {self.operation}: {self.kind}", self.cause, self.fix]
        lines += [f"  {name} = {figure(value)}" for name, value in self.values.items()]
        if self.then:
            lines.append(f"It became NaN in {self.then}.")
        return "\n".join(line for line in lines if line)


def find_nonfinite(
    model: nn.Module, batch: Any, loss_fn: Callable[..., Any] | None = None
) -> NonfiniteReport:
    """Runs one forward and backward pass and finds where NaN or an infinity came from.

    Parameters, buffers, gradients, hooks and the random state are afterwards as before; gradients
    are computed beside ``.grad``. Infinities that end in finite results (attention masks) do not
    count. Every operation is checked, so this is slow.

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
    sick = _sick_tensor("input", tensors_in(batch)) or _sick_tensor("parameter", _state(model))
    if sick is not None:
        return sick
    trace = ModuleTrace(model)
    watch = OpWatch(trace)
    try:
        with _state_kept(model), torch.enable_grad(), trace, watch:
            birth = _passes(model, batch, loss_fn, trace, watch)
    except UsageError:
        raise
    except Exception as error:  # anything that a user's model or loss raises
        culprits = [made for made in watch.births if not made.on_purpose]
        if not culprits:
            raise UsageError(
                f"batch: the pass failed in {trace.module} ({one_line(error)}): give a batch and a "
                "loss_fn as the training has them"
            ) from error
        birth = culprits[0]
    return _report(birth) if birth else NonfiniteReport(found=False, values={})


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
    birth = _first_of(results, watch)
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
    # A mean over each output: gradients of a usual size whatever the number of outputs.
    weights = [torch.full_like(root, 1.0 / max(root.numel(), 1)) for root in roots]
    gradients = torch.autograd.grad(roots, parameters, weights, allow_unused=True)
    return _first_of([gradient for gradient in gradients if gradient is not None], watch)


def _first_of(tensors: list[torch.Tensor], watch: OpWatch) -> Birth | None:
    """The earliest birth behind the non-finite ones among `tensors`; masks left out."""
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


def _report(birth: Birth) -> NonfiniteReport:
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


def _sick_tensor(phase: str, tensors: Iterator[tuple[str, torch.Tensor]]) -> NonfiniteReport | None:
    """Reports the first tensor with NaN or +infinity; -infinity is how masks are written."""
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


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


@contextmanager
def _state_kept(model: nn.Module) -> Iterator[None]:
    """Puts buffers (running statistics) and the random state back."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)


def _split(batch: Any, loss_fn: Callable[..., Any] | None) -> tuple[Any, tuple[Any, ...]]:
    """Returns what the model takes and what the loss takes beside the output."""
    if loss_fn is None or not _takes_target(loss_fn):
        return batch, ()
    if isinstance(batch, (list, tuple)) and len(batch) > 1:
        inputs = batch[0] if len(batch) == 2 else tuple(batch[:-1])
        return inputs, (batch[-1],)
    return batch, (batch,)


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
