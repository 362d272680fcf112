"""The session of this process, if it runs under `supervisor run`; nothing else."""

from __future__ import annotations

from typing import Any

session: Any = None
