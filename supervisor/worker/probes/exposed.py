"""Latents, rewards and entropies that a model exposes under the names that are in common use."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
import tokenize
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from supervisor.by_identity import ByIdentity
from supervisor.training_state.user_code import source_lines

MEAN = re.compile(r"(^|_|\d)(mu|mean)(_|\d|$)")
LOG_VARIANCE = re.compile(r"log_?(var|variance)|lnvar|log_?sigma_?(2|sq)|(^|_)var(_|$)")

VALUES: dict[str, tuple[str, ...]] = {
    "chosen_rewards": ("chosen_rewards", "rewards_chosen", "chosen_reward", "reward_chosen"),
    "rejected_rewards": (
        "rejected_rewards",
        "rewards_rejected",
        "rejected_reward",
        "reward_rejected",
    ),
    "rewards": ("rewards", "reward"),
    "advantages": ("advantages", "advantage"),
    "entropy": ("entropy",),
    "recon_loss": ("recon_loss", "reconstruction_loss", "rec_loss"),
    "value_loss": ("value_loss", "vf_loss", "critic_loss"),
}
"""What they are called here, and in the outputs of models."""

PLAIN = ("entropy", "recon_loss", "value_loss")
"""Those of which the mean is the figure."""


def exposed_values(module: nn.Module, output: Any) -> dict[str, Any]:
    """Returns what `output` of a root module, or the module itself, holds under a common name.

    Outputs with names are mappings, named tuples, dataclasses and the like; the parts of a plain
    tuple have those of the return statement. A posterior may be an object with ``mean`` and
    ``logvar``.
    """
    named = _named(output)
    if not named and isinstance(output, tuple):
        named = dict(zip(returned_names(module), output, strict=False))
    found = _latents(named) or _latents(
        {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
    )
    for name, others in VALUES.items():
        for other in others:
            if isinstance(named.get(other), torch.Tensor):
                found[name] = named[other].detach()
                break
    return found


class LatentHeads:
    """Pairs of submodules that put out mean and log-variance, by their names (``fc_mu``, ...)."""

    def __init__(self) -> None:
        self._parts: ByIdentity[nn.Module, str] = ByIdentity()
        self._seen: dict[str, Any] = {}

    def __contains__(self, module: nn.Module) -> bool:
        return module in self._parts

    def find(self, root: nn.Module) -> None:
        for parent in root.modules():
            children = dict(parent.named_children())
            means = [name for name in children if MEAN.search(name.lower())]
            spreads = [name for name in children if LOG_VARIANCE.search(name.lower())]
            if len(means) == len(spreads) == 1 and not self._parts:
                self._parts[children[means[0]]] = "mu"
                self._parts[children[spreads[0]]] = "logvar"

    def saw(self, module: nn.Module, output: Any) -> None:
        """Called behind the forward of a module that is among the pair; its first output counts."""
        if isinstance(output, torch.Tensor):
            self._seen.setdefault(self._parts.get(module), output.detach())

    def take(self) -> dict[str, Any]:
        seen, self._seen = self._seen, {}
        return _pair(seen.get("mu"), seen.get("logvar"))


def _named(output: Any) -> dict[str, Any]:
    if isinstance(output, Mapping):
        return {str(name): value for name, value in output.items()}
    if isinstance(output, tuple) and hasattr(output, "_asdict"):
        return dict(output._asdict())
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name, None) for field in _fields(output)}
    return {}


def _fields(output: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(output)


def _latents(named: Mapping[str, Any]) -> dict[str, Any]:
    mean = spread = None
    for name, value in named.items():
        posterior_mean, log_variance = getattr(value, "mean", None), getattr(value, "logvar", None)
        if isinstance(posterior_mean, torch.Tensor) and isinstance(log_variance, torch.Tensor):
            return _pair(posterior_mean, log_variance)
        if MEAN.search(name.lower()) and isinstance(value, torch.Tensor):
            mean = value if mean is None else mean
        elif LOG_VARIANCE.search(name.lower()) and isinstance(value, torch.Tensor):
            spread = value if spread is None else spread
    return _pair(mean, spread)


def _pair(mean: Any, spread: Any) -> dict[str, Any]:
    """Both, if they can be those of a Gaussian posterior: samples x units, of the same shape."""
    if not isinstance(mean, torch.Tensor) or not isinstance(spread, torch.Tensor):
        return {}
    if mean.shape != spread.shape or mean.dim() < 2 or not mean.is_floating_point():
        return {}
    return {"mu": mean.detach(), "logvar": spread.detach()}


def returned_names(module: nn.Module) -> tuple[str, ...]:
    """Returns the names in ``return decoded(z), mu, logvar``: ``("", "mu", "logvar")``.

    A part that is no plain name has none. Empty if the source is not at hand, or if two returns of
    a forward disagree.
    """
    kind: Any = type(module)
    return _names(kind)


@functools.lru_cache(maxsize=64)
def _names(kind: Any) -> tuple[str, ...]:
    forward = inspect.unwrap(kind.forward)
    try:
        lines, _ = source_lines(forward.__code__, forward.__globals__)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (AttributeError, OSError, SyntaxError, tokenize.TokenError):
        return ()
    found = {
        tuple(_name(part) for part in node.value.elts)
        for node in _own_nodes(tree.body[0])
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    }
    return found.pop() if len(found) == 1 else ()


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """All nodes of a function's body, without those of functions inside of it."""
    nodes: list[ast.AST] = []
    waiting: list[Any] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return nodes


def _name(part: ast.expr) -> str:
    if isinstance(part, ast.Name):
        return part.id
    return part.attr if isinstance(part, ast.Attribute) else ""
