"""The graph of a loss, walked once before its backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

MAX_NODES = 20_000
"""Walked in some 30 ms; a larger graph is left alone."""
_VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute",
          "ToCopy", "Alias", "T", "Clone")  # fmt: skip
VIEWS = frozenset(f"{name}Backward{n}" for name in (*_VIEWS, "Squeeze") for n in (0, 1, 2))
"""Nodes that change no value."""


class LossGraph:
    """Nodes of one loss; valid only until its backward begins.

    Attributes:
        nodes: from the loss to the leaves, each before at least one of its inputs.
        leaves: id of a leaf → it and the nodes that take it in, straight or through views.
        token_loss: see `kinds.tokens`; False until it was asked.
        runs_users_code: the script has a hook at a tensor, so that no gradient may be asked for.
    """

    def __init__(self, roots: Iterable[torch.Tensor], *, runs_users_code: bool = False) -> None:
        self.runs_users_code = runs_users_code
        self.token_loss: Any = False
        self.nodes: list[Any] = []
        self._by_name: dict[str, list[Any]] = {}
        self.leaves: dict[int, tuple[torch.Tensor, list[Any]]] = {}
        inputs: dict[Any, list[Any]] = {}
        waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node in inputs:
                continue
            inputs[node] = [child for child, _ in node.next_functions if child is not None]
            self.nodes.append(node)
            self._by_name.setdefault(node.name(), []).append(node)
            if len(self.nodes) > MAX_NODES:
                raise TooLarge
            waiting += inputs[node]
        views = {view for name in VIEWS for view in self._by_name.get(name, ())}
        for node in self.nodes:
            for child in () if node in views else inputs[node]:
                while child in views and inputs[child]:
                    child = inputs[child][0]
                leaf = getattr(child, "variable", None)
                if leaf is not None:
                    self.leaves.setdefault(id(leaf), (leaf, []))[1].append(node)

    def named(self, *beginnings: str) -> Iterator[Any]:
        for name, nodes in self._by_name.items():
            if name.startswith(beginnings):
                yield from nodes

    def has_users_code(self) -> bool:
        """Whether a backward through it would call anything of the script's: a hook at a tensor, a
        function of its own, a checkpoint that computes again, what unpacks saved tensors."""
        return self.runs_users_code or any(
            isinstance(node, BackwardCFunction) or _unpacks(node) for node in self.nodes
        )

    def reached_through(self, layers: set[int]) -> set[int]:
        """Leaves below a node that takes in one of `layers`: between that layer and the input."""
        nodes = [child for key in layers for node in self.leaves[key][1] for child in _below(node)]
        return {id(leaf) for leaf in _leaves_below(nodes)}

    def is_reached_beside(self, leaf: torch.Tensor, wanted: set[int]) -> bool:
        """Whether a node that takes in `leaf` has another input, computed from a wanted leaf: the
        gradient of that one comes through this one's layer."""
        for node in self.leaves.get(id(leaf), (leaf, []))[1]:
            if any(id(found) in wanted for found in _leaves_below(_below(node))):
                return True
        return False


def saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that `node` keeps for its backward.

    None where the script's own hook would have to unpack it (`saved_tensors_hooks`, checkpoints
    that are not reentrant: they compute again, and only once), and before torch 2.8, which does
    not tell whether there is one.
    """
    kept = getattr(node, f"_raw_saved_{name}", None)
    if getattr(kept, "unpack_hook", _unpacks) is not None:
        return None
    found = getattr(node, f"_saved_{name}")
    return found if type(found) is torch.Tensor else None


def ignored_by(node: Any) -> int:
    """The target that an ``nll_loss`` does not count."""
    return signed(node._saved_ignore_index)


def signed(index: int) -> int:
    """Torch hands out negative numbers of its graph as large ones."""
    return index - (1 << 64) if index >= 1 << 63 else index


def logits_of(node: Any) -> Any:
    """The log_softmax below an ``nll_loss``: both are a ``cross_entropy``. None without one."""
    below = behind_views(node.next_functions[0][0])
    return below if below is not None and below.name().startswith("LogSoftmax") else None


def _unpacks(node: Any) -> bool:
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            kept = getattr(node, name)
            for each in kept if isinstance(kept, (tuple, list)) else (kept,):
                if getattr(each, "unpack_hook", _unpacks) is not None:
                    return True
    return False


class TooLarge(Exception):
    """The graph has more than `MAX_NODES` nodes."""


def behind_views(node: Any) -> Any:
    """The first node, from `node` down, that is no view."""
    while node is not None and node.name() in VIEWS:
        node = node.next_functions[0][0] if node.next_functions else None
    return node


def _below(node: Any) -> list[Any]:
    """What a node takes in besides leaves."""
    return [
        child
        for child, _ in node.next_functions
        if child is not None and getattr(behind_views(child), "variable", None) is None
    ]


def _leaves_below(nodes: list[Any]) -> Iterator[torch.Tensor]:
    seen: set[Any] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        waiting.extend(child for child, _ in node.next_functions)
