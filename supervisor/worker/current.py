"""Who answers the user's API in this process, if it runs under `supervisor run`; nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.worker.user_api import UserApi

api: UserApi | None = None
