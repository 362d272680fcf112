"""Modules that import what they stand for when an attribute is asked of them.

They are not asked: plain python might import it later, or never.
"""

from __future__ import annotations

import types
from typing import Any, TypeGuard


def is_module(value: Any) -> TypeGuard[types.ModuleType]:
    """Whether a value is a module; `isinstance` would ask for its ``__class__``."""
    return issubclass(type(value), types.ModuleType)


def own_variables(module: types.ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return found
