"""Gathers what is seen of the step under way, from the moments to its `StepRecord`.

What `supervisor.observe` was given, or a model exposed, as numbers.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil
import torch
import xxhash
from torch._C import TensorBase
from torch.optim import Optimizer

from supervisor.records import NAN, StepRecord
from supervisor.training_state.optimizer_state import learning_rate
from supervisor.training_state.tensors import local, memory_of
from supervisor.worker.core.device_values import DeviceValues, is_late

_GIB = float(1 << 30)
_64_BITS = (1 << 64) - 1
_LOOK_EVERY_S = 1.0  # between two looks at the process's memory (up to 170 us each)


class StepProbe:
    """What was seen since the last update of the main optimizer.

    Args:
        in_environment: as in the settings; None asks from time to time whether one is there.

    Attributes:
        loss: of all backwards so far, without what is still to be read from a device.
        on_device: what is to be read; `settle` does.
        grad_norm: None until a norm is known; the script's own clipping gives it for free.
        clips_at: the bound of the script's own clipping that gave it; infinity for none.
        norm_of: of how many parameters `grad_norm` is the norm.
        others_trained: another optimizer stepped after a backward of its own.
        begins_training: the step is the first of another training.
        announced: the script has announced a change for the step.
        is_in_environment: whether one was there at the last look.
        memory_gib: of the process, as of the last look.
    """

    def __init__(self, in_environment: bool | None = None) -> None:
        self.observed: dict[str, float] = {}
        self._in_environment = in_environment
        self.is_in_environment = False
        self._process = psutil.Process()
        self.memory_gib = NAN
        self._last_time = NAN
        self._memory_time = NAN
        self.on_device = DeviceValues()
        self.forget()

    def forget(self) -> None:
        """Begins the next step."""
        self.loss = 0.0
        self.loss_seen = False
        if self.on_device.waiting or self.on_device.sent:
            self.on_device.forget()
        self.grad_norm: float | None = None
        self.backward_calls = 0
        self.forward_calls = 0
        self.batch_size = 0
        self.signature = 0
        self.loss_scale = NAN
        self.norm_of = 0
        self.clips_at = math.inf
        self.others_trained = False
        self.begins_training = False
        self.announced = False

    def saw_loss(self, loss: torch.Tensor) -> None:
        """A backward of it begins; it has one element."""
        self.loss_seen = True
        if is_late(loss):
            self.on_device.put("loss", loss, self._add_loss, add=True)
        else:
            self.loss += read_number(loss)

    def saw_norm(self, norm: torch.Tensor | float | None, scale: float = 1.0) -> None:
        """The norm of the gradients as they are, multiplied by `scale`."""
        if is_late(norm):
            self.grad_norm = NAN  # until it is read
            self.on_device.put("norm", norm, lambda number: self.saw_norm(number, scale))  # type: ignore[arg-type]
            return
        self.on_device.waiting.pop("norm", None)
        number = read_number(norm) if isinstance(norm, torch.Tensor) else norm
        self.grad_norm = None if number is None else number / scale

    def saw_scale(self, scaler: Any) -> None:
        """A GradScaler is in use: its scale."""
        scale: Any = getattr(scaler, "_scale", None)
        if "scale" in self.on_device.sent:
            return
        if is_late(scale):
            self.on_device.put("scale", scale, lambda number: setattr(self, "loss_scale", number))
        else:
            self.loss_scale = float(scaler.get_scale())

    def settle(self) -> None:
        """Reads what is still on a device; waits for it."""
        if self.on_device.waiting or self.on_device.sent:
            self.on_device.read()

    def _add_loss(self, loss: float) -> None:
        self.loss += loss

    def saw_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.forward_calls += 1
        is_one = not kwargs and len(args) == 1 and isinstance(args[0], torch.Tensor)
        words = [self.signature]
        with torch._C.DisableTorchFunction():  # a mode of the script sees nothing of ours
            for tensor in args if is_one else tensors_in(args, kwargs):
                is_plain = type(tensor) is torch.Tensor and not tensor.is_nested
                shape = tensor.shape if is_plain else _shape(tensor)
                if not self.batch_size and shape:
                    self.batch_size = shape[0]
                words += (len(shape), tensor.element_size(), *shape)
        # Hashes of tuples of numbers are the same in every process, unlike those of strings.
        self.signature = hash(tuple(words)) & _64_BITS

    def saw_batch(self, batch: Any) -> None:
        """Takes the first numbers of a loader's batch into the step's signature."""
        found = first_tensor(batch)
        head = None if found is None else _head_of(found)
        if head is not None:
            self.signature = xxhash.xxh3_64_intdigest(head, seed=self.signature)

    def record(
        self, step: int, now: float, optimizer: Optimizer, *, scaler_skipped: bool = False
    ) -> StepRecord:
        """Returns the record of the step whose update is about to be applied.

        Args:
            now: `time.time()`; a clock that is set back gives a step time of NaN.
        """
        elapsed = now - self._last_time
        self._last_time = now
        if elapsed < 0.0:
            elapsed = NAN
        if not now - self._memory_time < _LOOK_EVERY_S:
            self.memory_gib = self._memory()
            self._memory_time = now
            asked = self._in_environment
            self.is_in_environment = has_environment() if asked is None else asked
        norm = self.grad_norm
        observed, self.observed = self.observed, {}  # this one may wait, and must not be filled
        return StepRecord(
            step=step,
            loss=self.loss if self.loss_seen else NAN,
            grad_norm=NAN if norm is None else norm,
            lr=learning_rate(optimizer),
            loss_scale=self.loss_scale,
            step_time_s=elapsed,
            batch_size=self.batch_size,
            memory_gib=self.memory_gib,
            clips_at=self.clips_at,
            loss_seen=self.loss_seen,
            grad_norm_seen=norm is not None,
            scaler_skipped=scaler_skipped,
            others_trained=self.others_trained,
            begins_training=self.begins_training,
            announced=self.announced,
            in_environment=self.is_in_environment,
            observed=observed,
        )

    def _memory(self) -> float:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return torch.cuda.max_memory_allocated() / _GIB
        return float(self._process.memory_info().rss) / _GIB


_HEAD = 16


def _head_of(tensor: torch.Tensor) -> bytes | memoryview | None:
    """The first numbers of a tensor on the CPU; None of one that has none there."""
    if tensor.is_nested:
        return None
    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    first = tensor if is_plain else local(tensor)
    numbers = min(_HEAD, first.numel())
    if not first.is_cpu or not numbers:
        return None
    if is_plain and first.is_contiguous():
        size = first.element_size()
        end = (first.storage_offset() + numbers) * size
        if end <= first.untyped_storage().nbytes():
            return ctypes.string_at(first.data_ptr(), numbers * size)
    return memory_of(local(first).reshape(-1)[:_HEAD].contiguous())


read_number = TensorBase.item
"""Reads a tensor of one element, unseen by the patched `Tensor.item`; waits for its device."""


def told_by_scaler(optimizer: Optimizer) -> tuple[float, bool]:
    """What a GradScaler has told a fused optimizer, which divides gradients and leaves updates out
    itself, about the update under way; of others it does both.

    Returns:
        By which the gradients are multiplied, and whether some are not finite, so that the update
        will change nothing.
    """
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is None:
        return 1.0, False
    if scale is None:
        return 1.0, read_number(found) > 0
    both = torch.stack([scale.reshape(()), found.reshape(())])  # one wait
    told: list[float] = torch.Tensor.tolist(both)
    return told[0], told[1] > 0


def has_values(gradient: torch.Tensor) -> bool:
    """Whether a gradient that is there when a backward begins is one of earlier steps."""
    return gradient.is_sparse or bool(read_number(gradient.any()))


def first_tensor(value: Any, depth: int = 4) -> torch.Tensor | None:
    """Returns the first tensor found in a batch: tuples, lists, dicts; None without one."""
    if isinstance(value, torch.Tensor):
        return value
    for item in itertools.islice(items_of(value), 8) if depth else ():
        found = first_tensor(item, depth - 1)
        if found is not None:
            return found
    return None


def tensors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among a forward's direct arguments, and one level deep."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        else:
            found.extend(item for item in items_of(value) if isinstance(item, torch.Tensor))
    return found


def items_of(value: Any) -> Iterable[Any]:
    """What a list, tuple or dict holds; nothing of other objects. No method of the script's is
    called: one that loads or augments at each look would draw random numbers."""
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, list):
        return list.__iter__(value)
    if isinstance(value, tuple):
        return tuple.__iter__(value)
    inner = vars(value).get("data") if isinstance(value, UserDict) else None
    return dict.values(inner) if isinstance(inner, dict) else ()


def _shape(tensor: torch.Tensor) -> Sequence[int]:
    """Of one that is no plain tensor; of a nested one what all its parts have in common."""
    if tensor.is_nested and tensor.layout is torch.strided:
        return (tensor.size(0),)
    return [size if isinstance(size, int) else 0 for size in tensor.shape]


LIBRARIES = frozenset(
    {
        *("gymnasium", "gym", "pettingzoo", "dm_env", "envpool", "procgen"),
        *("stable_baselines3", "torchrl", "tianshou", "cleanrl_utils", "rsl_rl", "pfrl"),
        *(f"trl.trainer.{kind}_trainer" for kind in ("grpo", "ppo", "ppov2", "rloo")),
        *("trl.experimental.async_grpo", "trl.experimental.ppo"),
    }
)
"""Libraries of environments, and of agents that bring environments of their own; of TRL the modules
that it loads for those of its trainers that make their own data (DPO's and a reward model's are
given)."""


def has_environment() -> bool:
    """Whether one of `LIBRARIES` is loaded: hardly anybody loads them but to let a policy act."""
    return not LIBRARIES.isdisjoint(sys.modules)


ACTIVE_VARIANCE = 0.01
"""A latent unit is active when the variance over the data of its posterior mean exceeds this
(Burda, Grosse, Salakhutdinov, ICLR 2016, section 5.2)."""

NO_ADVANTAGE = 1e-6
"""Advantages at or below it in size teach nothing."""


def observed_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns one number a value, itself or the mean of a tensor, and `derived_numbers`.

    Raises:
        TypeError: a value is no number.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().float().mean()
        found[name] = float(value)
    return found | derived_numbers(values)


def derived_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the figures that detectors watch, of tensors with a known meaning.

    * ``mu``, ``logvar`` (batch x units) of a Gaussian posterior: ``kl`` (nats, mean over the batch
      of the sum over units), ``latent_variance``, ``active_units`` (a share).
    * ``chosen_rewards``, ``rejected_rewards`` (one a pair) of a reward model: ``reward_margin``,
      ``reward_accuracy``, ``reward_confidence`` (mean probability of the pair's likelier order),
      ``reward_score`` (mean over both), ``reward_spread`` (their deviation).
    * ``rewards``: ``reward``, their mean.
    * ``advantages``: ``advantage_std``, ``zero_advantage_share``.
    """
    found: dict[str, float] = {}
    mu, logvar = values.get("mu"), values.get("logvar")
    if isinstance(mu, torch.Tensor) and isinstance(logvar, torch.Tensor) and mu.dim() > 1:
        found |= _latents(mu.detach().float(), logvar.detach().float())
    chosen, rejected = values.get("chosen_rewards"), values.get("rejected_rewards")
    if isinstance(chosen, torch.Tensor) and isinstance(rejected, torch.Tensor):
        found |= _preferences(chosen.detach().float(), rejected.detach().float())
    rewards, advantages = values.get("rewards"), values.get("advantages")
    if isinstance(rewards, torch.Tensor) and rewards.numel():
        found["reward"] = float(rewards.detach().float().mean())
    if isinstance(advantages, torch.Tensor) and advantages.numel() > 1:
        size = advantages.detach().float()
        found["advantage_std"] = float(size.std(unbiased=False))
        found["zero_advantage_share"] = float((size.abs() <= NO_ADVANTAGE).float().mean())
    return found


def _latents(mu: torch.Tensor, logvar: torch.Tensor) -> dict[str, float]:
    mu, logvar = mu.flatten(1), logvar.flatten(1)
    kl = -0.5 * (1.0 + logvar - mu.square() - logvar.exp()).sum(1).mean()
    spread = mu.var(0, unbiased=False)
    return {
        "kl": float(kl),
        "latent_variance": float(spread.mean()),
        "active_units": float((spread > ACTIVE_VARIANCE).float().mean()),
    }


def _preferences(chosen: torch.Tensor, rejected: torch.Tensor) -> dict[str, float]:
    if chosen.shape != rejected.shape or not chosen.numel():
        return {}
    margin = (chosen - rejected).flatten()
    odds = torch.sigmoid(margin)
    both = torch.stack([chosen.flatten(), rejected.flatten()])
    figures = torch.stack(
        [
            margin.mean(),
            (margin > 0).float().mean(),
            torch.maximum(odds, 1.0 - odds).mean(),
            both.mean(),
            both.std(unbiased=False),
        ]
    )
    names = ("margin", "accuracy", "confidence", "score", "spread")
    return {f"reward_{name}": float(v) for name, v in zip(names, figures, strict=True)}
