"""Calculates each operator twice, and compares.

Whether two results are the same, and by how much they differ.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.worker.core.operator_form import (
    Inputs,
    OperatorForm,
    copied,
    form_of,
    generators_of,
    inputs_of,
    tensors_in,
)

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

SUMS = 64.0
"""Units in the last place of a tensor's largest value, in FP32: the order in which a long sum is
added moves its elements by a few."""
ELEMENTS = 4.0
"""Units in the last place of the element itself, in its type: FP16 and BF16 are summed in FP32."""


def are_same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors are equal to the bit, also where they are NaN."""
    return all(map(_is_same, some, others))


def differing(wrong: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns the flat places at which two tensors differ, that of the largest difference first."""
    places = torch.nonzero((_bits(wrong) != _bits(right)).reshape(-1)).reshape(-1)
    return places[torch.argsort(_apart(wrong, right)[places], descending=True)]


def distance(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[float]:
    """Returns for each pair of tensors the largest difference between two elements; infinite if
    only one of them is finite."""
    return [_largest(_apart(one, other)) for one, other in zip(some, others, strict=True)]


def beyond_rounding(wrong: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> list[float]:
    """Returns for each pair of tensors how much more than rounding the elements differ, at most;
    0 if rounding explains all."""
    return [
        _largest((_apart(one, other) - _rounding(other)).clamp(min=0.0))
        for one, other in zip(wrong, right, strict=True)
    ]


def _rounding(tensor: torch.Tensor) -> torch.Tensor:
    values = _flat(tensor).abs().nan_to_num(0.0, 0.0, 0.0)
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or not values.numel():
        return torch.zeros_like(values)
    unit = torch.finfo(tensor.dtype).eps
    sums = SUMS * min(unit, torch.finfo(torch.float32).eps)
    return sums * values.max() + ELEMENTS * unit * values


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(_bits(one), _bits(other))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(whole) if whole.dtype.is_complex else whole


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    values = _real(tensor)
    return values.view(_INTEGERS[values.element_size()])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return _real(tensor).reshape(-1).double()


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    some, others = _flat(one), _flat(other)
    both = some.isnan() & others.isnan() | (some == others)
    far = (some - others).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    return far.masked_fill(both, 0.0)


def _largest(values: torch.Tensor) -> float:
    return float(torch._C.TensorBase.item(values.max())) if values.numel() else 0.0


MORE = 3
"""Further calculations where two differ: four that agree against one."""

BEYOND_NOISE = 100.0
"""Where an operator never gives the same twice, a wrong result is so many times farther off than
its repetitions are from each other."""


@dataclass(frozen=True, slots=True)
class OddResult:
    """A result that further calculations of the same operator do not give.

    Attributes:
        operator: as torch names it.
        wrong, right: the tensor that differs most, and what it should be.
        inputs: the tensors that it was calculated from.
        in_training: the training would have gone on with it; else a repetition was wrong.
        is_replaced: the training goes on with `right`.
    """

    operator: str
    wrong: torch.Tensor
    right: torch.Tensor
    inputs: tuple[torch.Tensor, ...]
    in_training: bool
    is_replaced: bool


@dataclass(slots=True)
class CheckCounts:
    """Of one process. Calls; results that differed by rounding alone, and results that are never
    the same twice; seconds that the training's own calls took."""

    calls: int = 0
    rounded: int = 0
    varying: int = 0
    live_s: float = 0.0


class DoubledOperators(TorchDispatchMode):
    """On while a part of the model runs. The training gets the result of the first call.

    The repetition reads the same memory, and writes to copies. Generators of random numbers are put
    back before it, and stand behind it where they stood. Nothing of it reaches autograd.

    Args:
        may_replace: whether a wrong result is replaced by what the repetitions give; asked for
            each, because a rank may come to be only watched.

    Attributes:
        odd: results that were wrong.
        error: of ours; nothing is repeated behind it.
    """

    supports_higher_order_operators = True

    def __init__(self, *, may_replace: Callable[[], bool] = lambda: True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.odd: list[OddResult] = []
        self.counts = CheckCounts()
        self.error: Exception | None = None
        self._may_replace = may_replace

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would be imported

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        form = form_of(operator) if self.error is None else None
        repetition = None
        if form is not None:
            try:
                repetition = self._prepare(operator, form, args, kwargs)
            except Exception as error:
                self.error = error
        started = time.perf_counter()
        result = operator(*args, **kwargs)
        self.counts.live_s += time.perf_counter() - started
        if repetition is None:
            return result
        try:
            with torch._C._AutoDispatchBelowAutograd():
                return self._compare(repetition, result)
        except Exception as error:
            self.error = error
            return result

    def _prepare(
        self, operator: Any, form: OperatorForm, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Repetition | None:
        inputs = inputs_of(form, args, kwargs)
        if inputs is None:
            return None
        with torch._C._AutoDispatchBelowAutograd():
            repetition = _Repetition(operator, form, inputs)
            if not are_same(repetition.kept.written, inputs.written):
                self._note(repetition, repetition.kept.written, inputs.written, in_training=False)
                return None  # the copy was wrong
        return repetition

    def _compare(self, repetition: _Repetition, result: Any) -> Any:
        self.counts.calls += 1
        repetition.live_is_done()
        live = repetition.results(result, repetition.live.written)
        run = repetition.run()
        if are_same(live, run.results):
            return result
        unwritten = repetition.unwritten()
        live, first, *others = (
            [values.masked_fill(mask, 0) for values, mask in zip(results, unwritten, strict=True)]
            for results in (live, run.results, *(repetition.run().results for _ in range(MORE)))
        )
        if are_same(live, first):
            return result
        if all(are_same(live, other) for other in others):
            self._note(repetition, first, live, in_training=False)
            return result
        if not all(are_same(first, other) for other in others):
            self.counts.varying += 1
            if not _is_beyond_noise(live, first, others):
                return result
        is_wrong = self._note(repetition, live, first, in_training=True)
        return repetition.put(run, result) if is_wrong and self._may_replace() else result

    def _note(
        self,
        repetition: _Repetition,
        wrong: Sequence[torch.Tensor],
        right: Sequence[torch.Tensor],
        *,
        in_training: bool,
    ) -> bool:
        """Returns whether the difference is more than rounding."""
        is_strict = torch.are_deterministic_algorithms_enabled()
        beyond = (distance if is_strict else beyond_rounding)(wrong, right)
        worst = max(range(len(beyond)), key=beyond.__getitem__)
        if not beyond[worst]:
            self.counts.rounded += 1
            return False
        self.odd.append(
            OddResult(
                operator=str(repetition.operator),
                wrong=wrong[worst].detach().clone(),
                right=right[worst].detach().clone(),
                inputs=tuple(tensors_in((repetition.live.args, repetition.live.kwargs))),
                in_training=in_training,
                is_replaced=in_training and self._may_replace(),
            )
        )
        return True


def _is_beyond_noise(
    live: Sequence[torch.Tensor],
    first: Sequence[torch.Tensor],
    others: Sequence[Sequence[torch.Tensor]],
) -> bool:
    apart = [distance(first, other) for other in others]
    noise = [max(far) for far in zip(*apart, strict=True)]
    off = distance(live, first)
    return any(far > BEYOND_NOISE * usual > 0.0 for far, usual in zip(off, noise, strict=True))


@dataclass(frozen=True, slots=True)
class _Run:
    """One repetition: what it returned, what it was called with, and all tensors that it made."""

    returned: Any
    inputs: Inputs
    results: list[torch.Tensor]


class _Repetition:
    """Calls an operator again with what it was first called with."""

    def __init__(self, operator: Any, form: OperatorForm, live: Inputs) -> None:
        self.operator = operator
        self.live = live
        self.kept = copied(live)  # as it was before the first call
        self._form = form
        self._before = [(one, one.get_state()) for one in generators_of(live)]
        self._drawn: list[tuple[torch.Generator, torch.Tensor, torch.Tensor]] = []

    def live_is_done(self) -> None:
        for generator, before in self._before:
            after = generator.get_state()
            if not torch.equal(before, after):
                self._drawn.append((generator, before, after))

    def run(self) -> _Run:
        inputs = copied(self.kept)
        for generator, before, _ in self._drawn:
            generator.set_state(before)
        try:
            returned = self.operator(*inputs.args, **inputs.kwargs)
        finally:
            for generator, _, after in self._drawn:
                generator.set_state(after)
        return _Run(returned, inputs, self.results(returned, inputs.written))

    def results(self, returned: Any, written: list[torch.Tensor]) -> list[torch.Tensor]:
        """All dense tensors that a call has made or written to, but for bytes: kernels use them as
        work memory."""
        values = returned if isinstance(returned, tuple) else (returned,)
        own = [value for value, is_own in zip(values, self._form.own, strict=True) if is_own]
        made = [*tensors_in(own), *written]
        return [
            tensor
            for tensor in made
            if tensor.layout is torch.strided
            and tensor.dtype is not torch.uint8
            and not tensor.is_quantized
        ]

    def unwritten(self) -> list[torch.Tensor]:
        """Returns for each result where the operator leaves new memory as it found it. That is
        claimed of NaN, too: a result that should be NaN is no loss."""
        with _filled_memory():
            return [_is_filled(tensor) for tensor in self.run().results]

    def put(self, run: _Run, returned: Any) -> Any:
        """Returns what the first call has `returned`, with the results of `run`."""
        for tensor, right in zip(self.live.written, run.inputs.written, strict=True):
            tensor.copy_(right)
        if not isinstance(returned, tuple):
            return run.returned if self._form.own[0] else returned
        pairs = zip(returned, run.returned, self._form.own, strict=True)
        return tuple(again if is_own else first for first, again, is_own in pairs)


@contextlib.contextmanager
def _filled_memory() -> Iterator[None]:
    """Torch fills new memory with NaN, or the largest number, inside."""
    is_strict = torch._C._get_deterministic_algorithms()
    only_warns = torch._C._get_deterministic_algorithms_warn_only()
    is_filled = torch._C._get_deterministic_fill_uninitialized_memory()
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._set_deterministic_algorithms(is_strict, warn_only=only_warns)
        torch._C._set_deterministic_fill_uninitialized_memory(is_filled)


def _is_filled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.isnan()
    if tensor.dtype is torch.bool:
        return torch.zeros_like(tensor)
    return tensor == torch.iinfo(tensor.dtype).max
