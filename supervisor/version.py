"""The version, alone so that nothing else needs importing for it."""

from __future__ import annotations

__version__ = "0.1.0"
