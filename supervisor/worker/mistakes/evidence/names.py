"""Which module a parameter belongs to, also where a module hides in a plain list."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass

from torch import nn

from supervisor.training_state.registry import Registry
from supervisor.worker.mistakes.evidence.places import class_of, told


@dataclass(frozen=True, slots=True)
class Owner:
    """Attributes:
    name: of the parameter in the model, as in ``named_parameters``.
    module: that holds it.
    hidden_in: the module and its attribute, a plain container, where it is not registered.
    """

    name: str
    module: nn.Module
    hidden_in: tuple[nn.Module, str] | None = None


def owners(registry: Registry) -> dict[int, Owner]:
    """Id of a parameter → its owner, for the models of the run."""
    found: dict[int, Owner] = {}
    for model in registry.models.values():
        for path, module in list(nn.Module.named_modules(model)):
            _note(found, path, module, None)
            for attribute, value in list(vars(module).items()):
                if attribute.startswith("_") or not isinstance(value, (list, tuple, dict)):
                    continue
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for key, part in items:
                    if isinstance(part, nn.Module):
                        prefix = f"{path}.{attribute}" if path else attribute
                        for below, inner in nn.Module.named_modules(part):
                            at = f"{prefix}[{key!r}]" + (f".{below}" if below else "")
                            _note(found, at, inner, (module, attribute))
    return found


def _note(
    found: dict[int, Owner], path: str, module: nn.Module, hidden: tuple[nn.Module, str] | None
) -> None:
    for name, each in module._parameters.items():
        if each is not None and id(each) not in found:
            within = path or type(module).__name__  # a layer that is called by itself
            found[id(each)] = Owner(f"{within}.{name}", module, hidden)


def assigned_at(module: nn.Module, attribute: str) -> str:
    """Where the class of `module` first assigns an attribute; empty where that is not known."""
    within = class_of(module)
    lines = [
        part.lineno
        for part in (ast.walk(within[1]) if within else ())
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and part.attr == attribute
    ]
    return told(within[0], lines[0]) if within and lines else ""


def is_compiled(module: nn.Module) -> bool:
    return "torch._dynamo" in sys.modules and any(
        part._compiled_call_impl is not None or type(part).__name__ == "OptimizedModule"
        for part in nn.Module.modules(module)
    )


def some(names: list[str]) -> str:
    """The first few of many."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
