"""Imports what a dotted path in a config names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def load_dotted(path: str) -> Any:
    """Imports ``module.attribute``, also from the current folder, where configs are written.

    Raises:
        ImportError, AttributeError, ValueError: there is no such module or attribute.
    """
    module, _, attribute = path.rpartition(".")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # last: nothing there may hide an installed module
    return getattr(importlib.import_module(module), attribute)
