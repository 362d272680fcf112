"""The two forward passes of a layer-by-layer comparison."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.errors import UsageError
from supervisor.numerics.model_call import (
    call_model,
    cast_floats,
    how_to_call,
    map_tensors,
    one_line,
)
from supervisor.numerics.module_trace import ForwardRecord, LayerCall, copies_of
from supervisor.numerics.number_format import NumberFormat


class TwinPasses:
    """Runs two copies of one model on the same sample with the same random numbers.

    Args:
        reference: a copy that may be changed; runs in FP32.
        lowered: another copy; runs in `low`.
        autocast: `lowered` stays FP32 and runs under `torch.autocast`.

    Attributes:
        reference_calls, low_calls: what each pass returned, layer by layer.
        own_outputs: name of a call → output of the lowered layer for the reference's inputs.
    """

    def __init__(
        self, reference: nn.Module, lowered: nn.Module, low: NumberFormat, *, autocast: bool
    ) -> None:
        self.reference_calls: list[LayerCall] = []
        self.low_calls: list[LayerCall] = []
        self.own_outputs: dict[str, dict[str, torch.Tensor]] = {}
        self._reference = reference.float()
        self._lowered = lowered.float() if autocast else lowered.to(low.dtype)
        self._low = low
        self._autocast = autocast
        parameters = [*reference.parameters(), *reference.buffers()]
        self._device = parameters[0].device if parameters else torch.device("cpu")

    def run(self, sample: Any) -> None:
        """Makes both passes.

        Raises:
            UsageError: a forward pass raised; says which layer, and what to do.
        """
        sample = map_tensors(sample, lambda tensor: tensor.to(self._device))
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.no_grad():
            seed = torch.random.get_rng_state()
            cuda_seed = torch.cuda.get_rng_state(self._device) if devices else None
            self._low_pass(sample)
            torch.random.set_rng_state(seed)
            if cuda_seed is not None:
                torch.cuda.set_rng_state(cuda_seed, self._device)
            self._reference_pass(sample)

    def _low_pass(self, sample: Any) -> None:
        inputs = self._lower(sample)
        record = ForwardRecord(self._lowered)
        try:
            with record, self._low_precision():
                call_model(self._lowered, inputs)
        except UsageError:
            raise
        except Exception as error:  # anything that a user's forward raises
            # Whether the sample or the precision is to blame, the FP32 pass tells.
            self._reference_pass(sample, alone=True)
            raise self._refusal(error, record.innermost) from error
        self.low_calls = record.calls

    def _reference_pass(self, sample: Any, *, alone: bool = False) -> None:
        record = ForwardRecord(self._reference, on_enter=None if alone else self._try_alone)
        try:
            with record:
                call_model(self._reference, cast_floats(sample, torch.float32))
        except UsageError:
            raise
        except Exception as error:  # anything that a user's forward raises
            raise UsageError(
                f"sample: the forward pass in FP32 failed in {record.innermost} "
                f"({one_line(error)}): {how_to_call(self._reference, sample)}"
            ) from error
        self.reference_calls = record.calls

    def _try_alone(self, name: str, path: str, args: Any, kwargs: Any) -> None:
        """Runs one lowered layer on the reference's inputs; a layer that refuses is left out."""
        twin = self._lowered.get_submodule(path)
        arguments, named = self._lower(list(args)), self._lower(kwargs)
        devices = [self._device] if self._device.type == "cuda" else []
        # User's layers may raise whatever they like on inputs they were not written for.
        with contextlib.suppress(Exception), torch.random.fork_rng(devices):
            with self._low_precision():
                output = twin(*arguments, **named)
            self.own_outputs[name] = copies_of(output)

    def _lower(self, value: Any) -> Any:
        return cast_floats(value, torch.float32 if self._autocast else self._low.dtype)

    @contextlib.contextmanager
    def _low_precision(self) -> Iterator[None]:
        with FloatNoise():
            if not self._autocast:
                yield
                return
            with torch.autocast(self._device.type, self._low.dtype):
                yield

    def _refusal(self, error: Exception, layer: str) -> UsageError:
        name = self._low.name
        missing = re.search(
            r'"([^"]+)" not implemented for|[Cc]ould not run \'([^\']+)\'', str(error)
        )
        if missing:
            operation = missing[1] or missing[2]
            other = "bf16" if name == "fp16" else "fp16"
            return UsageError(
                f"{layer}: the operation {operation} does not exist for {name} on "
                f"{self._device.type}: compare with {other}, on a GPU, or with autocast"
            )
        return UsageError(
            f"{layer}: the forward pass works in FP32 but not in {name} ({one_line(error)}): if "
            "the model fixes types inside, compare with autocast"
        )


DRAWS = frozenset(
    {"bernoulli", "cauchy", "dropout", "exponential", "geometric", "log_normal", "multinomial",
     "native_dropout", "normal", "normal_functional", "poisson", "rand", "rand_like", "randn",
     "randn_like", "_standard_gamma", "uniform"}
)  # fmt: skip
LOW = (torch.bfloat16, torch.float16)


class FloatNoise(TorchDispatchMode):
    """While active, low-precision draws are made in FP32 and rounded.

    Otherwise dropout masks and sampled latents of the two passes would be unrelated.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name.rstrip("_") not in DRAWS:
            return func(*args, **kwargs)
        low = _low_dtype(args, kwargs)
        if low is None:
            return func(*args, **kwargs)
        drawn = func(*map_tensors(args, _to_float), **_in_float(kwargs))
        if name.endswith("_"):
            return args[0].copy_(drawn)
        return map_tensors(drawn, lambda tensor: _to_low(tensor, low))


def _low_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    asked = kwargs.get("dtype")
    if asked is not None:
        return asked if asked in LOW else None
    for value in args:
        if isinstance(value, torch.Tensor) and value.dtype in LOW:
            return value.dtype
    return None


def _in_float(kwargs: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = map_tensors(kwargs, _to_float)
    if changed.get("dtype") in LOW:
        changed["dtype"] = torch.float32
    return changed


def _to_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in LOW else tensor


def _to_low(tensor: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return tensor.to(low) if tensor.dtype == torch.float32 else tensor
