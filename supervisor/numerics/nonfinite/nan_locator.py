"""The first module and operation that leaves the finite range."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.numerics.forward.model_call import bare_model, call_model, one_line
from supervisor.numerics.forward.module_trace import LOSS, ModuleTrace
from supervisor.numerics.forward.state_kept import state_kept
from supervisor.numerics.forward.tensor_tree import is_float, tensors_in
from supervisor.numerics.nonfinite.nonfinite_report import (
    NonfiniteReport,
    first_birth,
    report_of,
    sick_tensor,
    state_of,
)
from supervisor.numerics.nonfinite.op_watch import Birth, OpWatch


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
