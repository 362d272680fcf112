"""Graphs that the script keeps across updates: log-probabilities of an episode whose critic is
updated at each of its steps, a generator's output that waits for the discriminator's updates.

A checkpoint holds what tensors hold, not how they were computed: a backward behind the resume that
goes through such a graph would end where the replay's stand-ins begin.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from supervisor.worker.core.step_probe import items_of

EACH_OF_FIRST = 1_000
"""Outputs of forwards that are watched; later ones only now and then."""
STRIDE = 17
"""A prime: scripts call their modules in turns."""
UNKNOWN_FOR = 2_000
"""Steps after which a list of tensors with graphs is taken for what nobody clears."""
MOST_BOUNDARIES = 256
"""That a checkpoint waits for one at which nothing is kept, but not longer than twice as long as a
graph was seen to be kept; where none came, no other waits."""
GRAPHS_ACROSS = "graphs_across"
KEPT_GRAPHS = "kept_graphs"
"""Names in a checkpoint's manifest: whether a backward was seen, and what `kept` has found."""
_NODES = 256
_IN_A_ROW = re.compile(r"\[\d+\]$")
_NAMED = 3


class GraphsAcross:
    """Notices backwards that reach what a forward before a boundary has put out.

    Attributes:
        seen: there was one.
        boundaries: that were passed.
    """

    def __init__(self) -> None:
        self.seen = False
        self.boundaries = 0
        self._outputs = 0
        self._waiting_since: int | None = None
        self._has_waited_in_vain = False
        self._first_node = 0  # of the live run: what a replay has made leads to stand-ins
        self._lifetime = 0  # of the longest that was seen, in boundaries

    def arrived(self, *, seen: bool) -> None:
        """Called where a replay has arrived.

        Args:
            seen: as the recorded run had it.
        """
        self.seen = seen
        self._first_node = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]

    def watch(self, output: Any) -> None:
        """Called with what an outermost forward has put out, unless `seen`."""
        self._outputs += 1
        if self._outputs > EACH_OF_FIRST and self._outputs % STRIDE:
            return
        for one in (output,) if isinstance(output, torch.Tensor) else _tensors(output):
            with torch._C.DisableTorchFunctionSubclass():
                node = one.grad_fn  # torch makes it anew at each look
            if node is not None and not torch._C._functorch.is_functorch_wrapped_tensor(one):
                node.register_prehook(functools.partial(self._reached, self.boundaries))

    def _reached(self, boundaries: int, _: Any) -> None:
        self._lifetime = max(self._lifetime, self.boundaries - boundaries)
        self.seen = self.seen or self._lifetime > 0

    def kept(self, held: Mapping[str, Any], steps: int) -> list[str]:
        """Returns the paths of tensors through whose graphs a later backward may go.

        As long as none of the script did so, these are those of lists: a single variable is mostly
        what an evaluation has left there.

        Args:
            held: path → tensor or array of the script's variables, at a boundary.
            steps: done so far.
        """
        if not self.seen and steps > UNKNOWN_FOR:
            return []
        with torch._C.DisableTorchFunctionSubclass():
            found = (
                path
                for path, one in held.items()
                if isinstance(one, torch.Tensor)
                and one.grad_fn is not None
                and one.grad_fn._sequence_nr() >= self._first_node
                and (self.seen or _IN_A_ROW.search(path))
                and has_living_graph(one)
            )
            return [path for path, _ in zip(found, range(_NAMED), strict=False)]

    def puts_off(self, held: Mapping[str, Any], steps: int) -> bool:
        """Whether a checkpoint that is due had better wait for the next boundary."""
        if not self.seen or self._has_waited_in_vain or not self.kept(held, steps):
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = self.boundaries
        most = min(2 * self._lifetime or MOST_BOUNDARIES, MOST_BOUNDARIES)
        self._has_waited_in_vain = self.boundaries - self._waiting_since >= most
        return not self._has_waited_in_vain


def has_living_graph(tensor: torch.Tensor) -> bool:
    """Whether a backward could go through the graph of a tensor: none has, and freed it."""
    waiting = deque([tensor.grad_fn])
    met: set[Any] = set()
    while waiting and len(met) < _NODES:
        node = waiting.popleft()
        if node is None or node in met:
            continue
        met.add(node)
        try:
            if any(isinstance(getattr(node, name), torch.Tensor) for name in _saved(type(node))):
                return True
            if getattr(node, "saved_tensors", ()):
                return True
        except RuntimeError:  # freed
            return False
        waiting.extend(before for before, _ in node.next_functions)
    return False


@functools.cache
def _saved(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def has_graph(output: Any) -> bool:
    """Whether what a forward has put out was computed with a graph."""
    return any(one.requires_grad for one in _tensors(output))


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    else:
        yield from (one for one in items_of(output) if isinstance(one, torch.Tensor))
