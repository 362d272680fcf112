"""The name under which another program knows a run, the same for all attempts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, MutableMapping

from supervisor.settings import LogSettings
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.rundir import RunDirectory

WANDB_ID, WANDB_RESUME = "WANDB_RUN_ID", "WANDB_RESUME"


def new_id() -> str:
    return secrets.token_hex(8)


def kept_id(rundir: RunDirectory, name: str, make: Callable[[], str] = new_id) -> str:
    """Returns the id in ``RUN/logs/<name>.id``; the first time what `make` returns is kept there.

    Raises:
        OSError: it cannot be read or written.
    """
    path = rundir.root / "logs" / f"{name}.id"
    try:
        known = path.read_text().strip()
    except FileNotFoundError:
        known = ""
    if not known:
        known = make()
        write_private(path, f"{known}\n")
    return known


def name_the_scripts_run(
    rundir: RunDirectory, settings: LogSettings, environment: MutableMapping[str, str]
) -> None:
    """Sets W&B's variables for the script, unless the user has set one of them.

    Called by the parent, before anything is started.

    Raises:
        OSError: the id cannot be kept.
    """
    if settings.wandb_of_script and not _is_named(environment):
        environment[WANDB_ID] = kept_id(rundir, "wandb_of_script")
        environment[WANDB_RESUME] = "allow"


def _is_named(environment: Mapping[str, str]) -> bool:
    return WANDB_ID in environment or WANDB_RESUME in environment
