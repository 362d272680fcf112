"""The reports of `find_nonfinite` and of the watch over a script's step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from supervisor.numerics.figures.readable import figure
from supervisor.numerics.forward.tensor_tree import is_float
from supervisor.numerics.nonfinite.op_watch import Birth, OpWatch


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NonfiniteReport:
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

    def to_dict(self) -> dict[str, Any]:
        fields = {field: getattr(self, field) for field in self.__slots__}
        return {**fields, "values": dict(self.values)}

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
