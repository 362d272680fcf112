"""Which of the user's variables a checkpoint must hold, remembered from one look to the next.

The first look at the user's variables.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any

import torch

from supervisor.training_state.held_values import (
    Stamp,
    find_held,
    is_of_call,
    put_back,
    stamp,
    stamps,
    storages,
)
from supervisor.training_state.registry import Registry
from supervisor.training_state.script_state.inside_process import STILL_UNDER_WAY
from supervisor.training_state.script_state.reach import Reach
from supervisor.training_state.tensors import local, walk_tensors, write_into
from supervisor.worker.core.budget import own_time
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.script_state.user_frames import user_frames

WAIT_S = 5.0
"""So long a state waits for what ranks exchange meanwhile. All of them stand at one place, so all
have called it, or will before they come to this boundary."""
_TENSOR = frozenset({torch.Tensor})


class UserTensors:
    """Tensors and arrays of the user's variables, beside models and optimizers.

    `begin` looks before the first step: what never changes from there on (a data set, a mask) is
    not saved. All are called at a boundary.

    Attributes:
        has_begun: `begin` was called.
        left_out: what the last `find` could not save, in words.
        looks: how often `find` was called.
        first_look_s: what `start` took, of `own_time`.
    """

    def __init__(self, registry: Registry) -> None:
        self.has_begun = False
        self.left_out: list[str] = []
        self._registry = registry
        self._known: dict[str, Stamp] = {}
        self._wait_s = WAIT_S
        self.looks = 0
        self.first_look_s = 0.0
        self._lasting: dict[str, tuple[weakref.ref[torch.Tensor], int]] = {}

    def start(self, frames: Mapping[str, Any], but: Collection[str] = ()) -> None:
        """Remembers what is there before the first step.

        Args:
            frames: the user's variables.
            but: after a resume, the paths that had changed by then already.
        """
        self.has_begun = True
        started = own_time()
        known = stamps(find_held(frames, self._excluded()))
        self.first_look_s = own_time() - started
        self._known = {path: stamp for path, stamp in known.items() if path not in but}

    def find(
        self,
        frames: Mapping[str, Any],
        call: Mapping[str, Any] | None = None,
        reach: Reach | None = None,
    ) -> dict[str, Any]:
        """Returns path → live value of all that a checkpoint must hold now.

        Args:
            call: what the call under way works on; `reach`: see `find_held`.
        """
        self.left_out = []
        found = find_held(
            frames,
            self._excluded(),
            call=call,
            known=self._known,
            left_out=self.left_out,
            wait_s=self._wait_s,
            reach=reach,
        )
        if any(line.endswith(STILL_UNDER_WAY) for line in self.left_out):
            self._wait_s = 0  # nor will others be done at a boundary
        self.looks += 1
        lasting: dict[str, tuple[weakref.ref[torch.Tensor], int]] = {}
        for path, value in found.items():
            if is_of_call(path):
                continue
            if isinstance(value, torch.Tensor) and local(value).is_floating_point():
                earlier = self._lasting.get(path)
                is_same = earlier is not None and earlier[0]() is value
                first = earlier[1] if is_same and earlier else self.looks
                lasting[path] = weakref.ref(value), first
        self._lasting = lasting
        return dict(found)

    def lasting(self, since: int | None = None) -> dict[str, torch.Tensor]:
        """Those float tensors of the last look that are still there: averages, accumulators.

        Snapshots hold them too, so that a rollback also heals a poisoned average.

        Args:
            since: only those that were there at this look already; None for all.
        """
        found = {
            path: reference()
            for path, (reference, first) in self._lasting.items()
            if since is None or first <= since
        }
        return {path: value for path, value in found.items() if value is not None}

    def put_back(
        self, frames: Mapping[str, Any], saved: Mapping[str, Any], call: Mapping[str, Any]
    ) -> list[str]:
        """Writes saved values into the variables of a resumed run, and into what its call under way
        works on; returns what failed, why."""
        return put_back(frames, saved, call)

    def differing(
        self, frames: Mapping[str, Any], saved: Mapping[str, Any], call: Mapping[str, Any]
    ) -> list[str]:
        """Returns which of the saved values are not what they are now."""
        live = find_held(frames, self._excluded(), call=call) if saved else {}
        return [
            f"{path} is another one"
            for path, value in saved.items()
            if path not in live or stamp(live[path])[1:] != stamp(value)[1:]
        ]

    def put_back_lasting(self, saved: Mapping[str, Any], since: int | None = None) -> None:
        """Writes a snapshot's values into the tensors that are still the same objects; not into
        the batch of today, which has the name of that of then.

        Args:
            saved: of the snapshot.
            since: `looks` when it was taken; None where that is not known.
        """
        live = self.lasting(since)
        for path, value in saved.items():
            tensor = live.get(path)
            if tensor is not None and tensor.shape == value.shape:
                write_into(tensor, value)

    def heal(self, frames: Mapping[str, Any]) -> list[str]:
        """Zeroes what is not finite in the script's own state; returns the paths.

        Called after a rollback, because a recurrent state with NaN would poison the restored
        weights again. Only tensors of two or more dimensions that have changed since the first step
        count: a loss in a list is a record, and a data set is what it is.
        """
        healed = []
        for path, value in find_held(frames, self._excluded(), known=self._known).items():
            if not isinstance(value, torch.Tensor) or value.dim() < 2:
                continue
            if value.is_floating_point() and not bool(value.isfinite().all()):
                write_into(value, value.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
                healed.append(path)
        return healed

    def _excluded(self) -> set[int]:
        return storages(registry_tensors(self._registry))


def registry_tensors(registry: Registry) -> list[torch.Tensor]:
    """All tensors that a checkpoint holds with models and optimizers, and gradients."""
    tensors: list[torch.Tensor] = []
    for model in registry.models.values():
        parameters = list(model.parameters())
        tensors += [*parameters, *model.buffers()]
        tensors += [gradient for p in parameters if (gradient := p.grad) is not None]
    for optimizer in registry.optimizers.values():
        tensors += [p for group in optimizer.param_groups for p in group["params"]]
        for entries in optimizer.state.values():
            if type(entries) is dict and _TENSOR.issuperset(map(type, entries.values())):
                tensors += entries.values()
            else:
                tensors += [t for _, t in walk_tensors(entries)]
    return tensors


class FirstVariables(Part):
    """Has `UserTensors` remember what is there before the first step, or where a resume arrives."""

    name = "variables"

    def __init__(self, held: UserTensors) -> None:
        self._held = held

    def at_boundary(self, step: int) -> None:
        self.before_first_update()

    def before_first_update(self) -> None:
        if not self._held.has_begun:
            self._held.start(user_frames())

    def save(self, point: SavePoint) -> None:
        point.note({"held_left_out": self._held.left_out})

    def goes_live(self, arrived: Arrived) -> None:
        self._held.start(user_frames(), but=set(arrived.state.get("held", {})))
