"""Everything that a checkpoint holds of a run, as one nested dict of tensors and plain values.

models      model_0 → name → tensor (parameters and all buffers; tied ones under each name)
buffers     model_0 → names of `models` that are buffers
unwritten   model_0 → names of buffers that held NaN before the first forward; only where there are
modes       model_0 → submodule → training flag
attributes  model_0 → plain attributes of submodules, such as call counters
extra       model_0 → submodule → get_extra_state()
optimizers  optimizer_0 → state by parameter index, param_groups, parameters outside models
schedulers, scalers, tracked      name → state
stages      scaler_0 → optimizer_0 → how far the scaler is with the step under way
rng         see `RngState`
held        path → tensor or array that a variable of the user holds (plain form)
grads       optimizer_0, model_0 → parameter index → gradient (`gradients`)
left_out    one line for each thing that could not be saved

A state on disk: one file that plain torch reads.

    state = torch.load("state.pt", weights_only=True, map_location="cpu")
    model.load_state_dict(state["models"]["model_0"], strict=False)

(``strict=False`` because non-persistent buffers are in it too.)
"""

from __future__ import annotations

import pickle
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash

from supervisor.errors import CheckpointDamaged, CheckpointError, StateTorn, pass_on
from supervisor.storage.files.private_files import open_private
from supervisor.training_state import (
    device_copies,
    gradients,
    model_state,
    optimizer_state,
    state_pickle,
)
from supervisor.training_state import own_methods as scaler_state
from supervisor.training_state import plain_form as plain_form
from supervisor.training_state.model_state import module_attributes, put_back_attributes
from supervisor.training_state.own_methods import OwnMethod, load_all
from supervisor.training_state.plain_form import to_plain
from supervisor.training_state.registry import Registry
from supervisor.training_state.rng import RngState
from supervisor.training_state.tensors import (
    bytes_of,
    copied_together,
    is_small,
    local,
    outside_autograd,
    storage_of,
    tensors_within,
    walk,
    walk_tensors,
)

FORMAT = 1
ROLLBACK_PARTS = frozenset({"models", "optimizers", "scalers", "tracked"})
"""What a rollback in place restores; schedulers, counters and RNG follow the user's loop."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SMALL, _TOGETHER = 4096, 512
"""Bytes of a tensor, on average, up to which so many are copied to be looked at together."""
Objects = list[tuple[str, Any, Any]]
"""Name, live object, and what was saved of it."""

ALL_PARTS = ROLLBACK_PARTS | frozenset(
    ("groups", "schedulers", "modes", "attributes", "stages", "rng", "grads")
)


class TrainingState:
    """Captures and restores what the registry's objects hold.

    Call both at a boundary only, on every rank; each rank handles its own part.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def capture(
        self,
        *,
        held: Mapping[str, Any] | None = None,
        include_grads: bool = False,
        for_rollback: bool = False,
    ) -> dict[str, Any]:
        """Returns the state with *live* tensors: copy it (`copy_state`) to keep it.

        An object whose own ``state_dict`` fails is left out and named in ``left_out``.

        Args:
            held: what the user's variables hold, see `find_held`.
            include_grads: those of optimizers too, when the script does not clear them.
            for_rollback: only `ROLLBACK_PARTS` and `held`.
        """
        left_out: list[str] = []
        registry = self.registry
        models = registry.models
        parts = {name: model_state.named_parts(model) for name, model in models.items()}
        state = self._weights(parts, left_out) | {
            "scalers": _each(
                registry.scalers, lambda n, s: scaler_state.capture_scaler(s, n, left_out)
            ),
            "tracked": _each(registry.tracked, lambda n, o: _state_dict_of(n, o, left_out)),
            "held": _each(held or {}, lambda n, v: to_plain(v, n, left_out)),
        }
        if not for_rollback:
            state |= {
                "modes": _each(parts, lambda _, p: model_state.modes(p)),
                "attributes": _each(models, lambda n, m: module_attributes(m, parts[n])),
                "schedulers": _each(
                    registry.schedulers, lambda n, s: _state_dict_of(n, s, left_out)
                ),
                "stages": _each(
                    registry.scalers,
                    lambda _, s: scaler_state.capture_stages(s, registry.optimizers),
                ),
                "rng": RngState.capture(),
            }
            state["grads"] = gradients.capture_gradients(registry, of_optimizers=include_grads)
        return state | {"left_out": left_out}

    def _weights(self, parts: Mapping[str, Any], left_out: list[str]) -> dict[str, Any]:
        """Models, which of their tensors are buffers, their extra states, and optimizers."""
        registry = self.registry
        named = {
            name: model_state.named_tensors(model, parts[name])
            for name, model in registry.models.items()
        }
        unwritten = {
            name: [key for key, buffer in buffers.items() if buffer in registry.unwritten]
            for name, (_, buffers) in named.items()
        }
        in_models = {id(p) for parameters, _ in named.values() for p in parameters.values()}
        capture = optimizer_state.capture_optimizer
        return {
            "format": FORMAT,
            "models": _each(named, lambda _, found: model_state.held_tensors(*found)),
            "buffers": _each(named, lambda _, found: list(found[1])),
            **({"unwritten": unwritten} if any(unwritten.values()) else {}),
            "extra": _each(parts, lambda n, p: model_state.extra_states(p, n, left_out)),
            "optimizers": _each(
                registry.optimizers, lambda n, o: capture(o, n, left_out, in_models)
            ),
        }

    def restore(self, state: Mapping[str, Any], parts: Collection[str] | None = None) -> None:
        """Writes `state` into the live objects, in place, except ``held`` (see `put_back`).

        Args:
            state: from `capture`, a copy of it, or `read_state`.
            parts: what to restore. None is everything, for a new process, and requires the same
                models and optimizers. `ROLLBACK_PARTS` leaves schedulers, learning rates, module
                counters, flags and RNG alone.

        Raises:
            CheckpointError: something is missing or does not fit, or a method of the user's that
                loads a part raised; nothing was changed then.
            StateTorn: it failed half-way.
        """
        wanted = ALL_PARTS if parts is None else frozenset(parts)
        registry = self.registry
        if parts is None:
            _check_names("model", registry.models, state["models"])
            _check_names("optimizer", registry.optimizers, state["optimizers"])
        models = _shared(registry.models, state["models"]) if "models" in wanted else []
        optimizers = (
            _shared(registry.optimizers, state["optimizers"]) if "optimizers" in wanted else []
        )
        self._check(state, wanted, models, optimizers)
        load_all(self._own_methods(state, wanted, models))
        try:
            with device_copies.written_together():
                self._write(state, wanted, models, optimizers)
        except Exception as error:
            raise StateTorn(
                f"{type(error).__name__}: {error}: a part of the state is old and a part new"
            ) from error
        torch.clear_autocast_cache()  # casts of the weights as they were

    def _check(
        self, state: Mapping[str, Any], wanted: frozenset[str], models: Objects, optimizers: Objects
    ) -> None:
        registry = self.registry
        parts = {"extra"} | (wanted & {"modes", "attributes"})
        plain_form.check_parts(state, sorted(parts), [name for name, _, _ in models])
        for name, model, saved in models:
            model_state.check_model(name, model, saved)
        for name, optimizer, saved in optimizers:
            optimizer_state.check_optimizer(name, optimizer, saved)
        if "grads" in wanted:
            gradients.check_gradients(registry, state.get("grads", {}))
        if "scalers" in wanted:
            for name, scaler, saved in _shared(registry.scalers, state["scalers"]):
                plain_form.check_scaler(name, scaler, saved)
        if "schedulers" in wanted:
            for name, schedule, saved in _shared(registry.schedulers, state["schedulers"]):
                plain_form.check_schedule(name, schedule, saved)
        if "rng" in wanted:
            plain_form.check_random(state["rng"])

    def _own_methods(
        self, state: Mapping[str, Any], wanted: frozenset[str], models: Objects
    ) -> list[OwnMethod]:
        registry = self.registry
        found: list[OwnMethod] = []
        for name, model, _ in models:
            found += model_state.extra_state_methods(model, name, state["extra"][name])
        for kind, live in (("schedulers", registry.schedulers), ("tracked", registry.tracked)):
            if kind in wanted:
                found += [
                    OwnMethod(
                        name=name, saved=saved, load=value.load_state_dict, give=value.state_dict
                    )
                    for name, value, saved in _shared(live, state[kind])
                    if saved is not None
                ]
        if "scalers" in wanted:
            for name, scaler, saved in _shared(registry.scalers, state["scalers"]):
                found += scaler_state.own_methods(name, scaler, saved)
        return found

    def _write(
        self, state: Mapping[str, Any], wanted: frozenset[str], models: Objects, optimizers: Objects
    ) -> None:
        registry = self.registry
        for name, model, saved in models:
            model_state.restore_model(model, saved)
            if "modes" in wanted:
                model_state.restore_modes(model, state["modes"][name])
            if "attributes" in wanted:
                put_back_attributes(model, state["attributes"][name])
        for _, optimizer, saved in optimizers:
            optimizer_state.restore_optimizer(optimizer, saved, groups="groups" in wanted)
        if "grads" in wanted and "grads" in state:
            gradients.restore_gradients(registry, state["grads"])
        if "scalers" in wanted:
            for _, scaler, saved in _shared(registry.scalers, state["scalers"]):
                scaler_state.restore_scaler(scaler, saved)
        if "stages" in wanted:
            for _, scaler, saved in _shared(registry.scalers, state.get("stages", {})):
                scaler_state.restore_stages(scaler, registry.optimizers, saved)
        if "rng" in wanted:
            RngState.restore(state["rng"])


def _each(kind: Mapping[str, Any], capture: Callable[[str, Any], Any]) -> dict[str, Any]:
    return {name: capture(name, value) for name, value in kind.items()}


def _state_dict_of(name: str, value: Any, left_out: list[str]) -> Any:
    try:
        return to_plain(value.state_dict(), name, left_out)
    except BaseException as error:  # the user's own method
        pass_on(error)
        left_out.append(f"{name}: state_dict() raised {type(error).__name__}: {error}")
        return None


def digest(state: Mapping[str, Any]) -> str:
    """Returns the xxh3 (128 bit, hexadecimal) of all names, values, dtypes, shapes and bytes.

    Equal digests mean equal states, whatever device or process they are in.
    """
    checksum = xxhash.xxh3_128()
    with outside_autograd():
        for name, leaf in walk(dict(state)):
            if isinstance(leaf, torch.Tensor):
                checksum.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
                checksum.update(bytes_of(leaf))
            else:
                checksum.update(f"{name} {leaf!r}\n".encode())
    return checksum.hexdigest()


def is_finite(state: Mapping[str, Any]) -> tuple[bool, str]:
    """Returns whether weights and optimizer state are finite, and the first that is not.

    Buffers may hold infinities (attention masks do) but no NaN.
    """
    bounds: list[tuple[str, bool, torch.Tensor]] = []
    checked = [state.get(part, {}) for part in ("models", "optimizers", "tracked")]
    with outside_autograd():
        if _are_small_and_finite(tensors_within(checked)):
            return True, ""
        for model, tensors in state.get("models", {}).items():
            buffers = set(state.get("buffers", {}).get(model, ()))
            unwritten = state.get("unwritten", {}).get(model, ())
            for name, tensor in tensors.items():
                if name in unwritten:
                    continue
                _append_bounds(bounds, f"{model}.{name}", tensor, name in buffers)
        for part in ("optimizers", "tracked"):
            for name, tensor in walk_tensors(state.get(part, {})):
                _append_bounds(bounds, name, tensor, part == "tracked")
        for name, infinite_allowed, bound in bounds:
            low, high = bound.tolist()
            if low != low or (not infinite_allowed and max(-low, high) == float("inf")):
                return False, name
    return True, ""


def _are_small_and_finite(tensors: list[torch.Tensor]) -> bool:
    """Whether all are finite, where nearly all are small: these are looked at together."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_floating_point():
            is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
            if not (is_plain and tensor.is_cpu and tensor.element_size() > 1):
                return False  # 8-bit floats know no comparison
            by_type.setdefault(tensor.dtype, []).append(tensor)
    if sum(tensor.nbytes for alike in by_type.values() for tensor in alike) > _SMALL * len(tensors):
        return False
    return all(
        bool(torch._C._nn.flatten_dense_tensors(alike[start : start + _TOGETHER]).isfinite().all())
        for alike in by_type.values()
        for start in range(0, len(alike), _TOGETHER)
    )


def _append_bounds(
    bounds: list[tuple[str, bool, torch.Tensor]], name: str, tensor: torch.Tensor, lenient: bool
) -> None:
    if not tensor.is_floating_point() or tensor.is_sparse:
        return
    values = local(tensor)
    if values.numel() == 0:  # of a DTensor whose rows do not suffice for all ranks
        return
    if values.element_size() == 1:  # 8-bit floats know no comparison
        values = values.float()
    bounds.append((name, lenient, torch.stack(torch.aminmax(values))))


def _check_names(kind: str, live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    missing = sorted(live.keys() ^ saved.keys())
    if missing:
        where = "the script" if missing[0] in live else "the checkpoint"
        raise CheckpointError(
            f"{missing[0]}: this {kind} is only in {where}: it was saved by another script, or "
            "from other arguments; start a new run directory"
        )


def _shared(live: Mapping[str, Any], saved: Mapping[str, Any]) -> Objects:
    return [(name, value, saved[name]) for name, value in live.items() if name in saved]


STATE_FILE = "state.pt"


def write_state(folder: Path, state: Mapping[str, Any]) -> Path:
    """Writes ``state.pt`` into `folder` (private, not yet flushed to disk); returns its path.

    Tensor by tensor: none of another device, and no copy of the whole, lies in memory meanwhile.
    Small tensors have one memory together in the file.
    The owner of `folder` takes care of checksums, staging and flushing.

    Raises:
        CheckpointError: `state` holds something that is neither a tensor nor plain.
        OSError: the disk is full, or `folder` is missing.
    """
    path = folder / STATE_FILE
    with outside_autograd():
        viewed: Counter[int] = Counter()
        tensors = {id(t): t for t in tensors_within(dict(state))}.values()
        for tensor in tensors:
            viewed[storage_of(tensor) or 0] += tensor.numel() * tensor.element_size()
        done = copied_together(t for t in tensors if is_small(t) and _is_alone(t, viewed))
        compact = _compact(dict(state), "state", done, viewed)
        with open_private(path, "wb") as file:
            torch.save(compact, file, pickle_module=state_pickle)
    return path


def read_state(folder: Path) -> dict[str, Any]:
    """Returns the state in `folder` on the CPU; nothing in the file is executed.

    Its tensors are pages of the file, which the system reads when they are used and gives up when
    memory is short; what is written into them stays in this process.

    Raises:
        CheckpointError: there is no state, or a newer version of this package wrote it.
        CheckpointDamaged: the file is not what `write_state` writes.
    """
    path = folder / STATE_FILE
    try:
        state = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file: use another checkpoint of the run") from error
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
    ) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointDamaged(f"{path}: not readable ({first}): use an older one") from error
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointDamaged(f"{path}: not a state of this package: use an older one")
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{path}: format {state['format']}, this version reads up to {FORMAT}: "
            "update training-supervisor"
        )
    return state


def _is_alone(tensor: torch.Tensor, viewed: Mapping[int, int]) -> bool:
    """Whether no other tensor of the state lies in its memory, nor anything else."""
    storage = tensor.untyped_storage()
    return tensor.nbytes == storage.nbytes() == viewed.get(storage.data_ptr())


def _compact(
    value: Any, where: str, done: dict[int, tuple[Any, torch.Tensor]], viewed: Mapping[int, int]
) -> Any:
    """Copies tensors that are small views of large storages, unless others view the rest of it.

    Args:
        done: id of a tensor → it and its copy; those of small ones are there.
        viewed: address of a storage → bytes that the state's tensors have of it.
    """
    if isinstance(value, torch.Tensor):
        if id(value) not in done:
            own = local(value)
            storage = own.untyped_storage()
            done[id(value)] = (
                value,
                own if storage.nbytes() <= viewed.get(storage.data_ptr(), 0) else own.cpu().clone(),
            )
        return done[id(value)][1]
    if isinstance(value, dict):
        return {
            key: done[id(item)][1]
            if id(item) in done
            else _compact(item, f"{where}[{key!r}]", done, viewed)
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(_compact(item, f"{where}[..]", done, viewed) for item in value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise CheckpointError(
        f"{where}: {type(value).__name__} is neither a tensor nor plain: "
        "put it through supervisor.training_state.plain_form.to_plain first"
    )
