"""Everything this package raises on purpose.

SupervisorError
├── UsageError            the command line, a policy or a config is wrong: exit code 64
│   └── ConfigError       a YAML file, a `--set` or a key in one
├── RunDirectoryError     a run directory is missing, foreign or not readable
├── CheckpointError       a checkpoint cannot be written or must not be loaded
│   ├── CheckpointDamaged it was read back and is not what was written
│   ├── StateNotFinite    a state holds NaN or infinities, so it is not saved
│   └── StateTorn         the live state is half an older one: nothing may go on with it
└── ReplayError           a resumed script does something else than the recorded one did
"""

from __future__ import annotations


class SupervisorError(Exception):
    """Base of all errors that this package raises on purpose.

    The message always says where, what, and what to do: ``runs/a: no run.json: give the directory
    that `supervisor run` printed``.
    """


class UsageError(SupervisorError):
    """Something the user asked for is not possible as asked; nothing was started (exit 64)."""


class ConfigError(UsageError):
    """A policy, a config or a ``--set`` is wrong; names the file, the key and the nearest key."""


class RunDirectoryError(SupervisorError):
    """A run directory is missing, holds another run, or cannot be read."""


class CheckpointError(SupervisorError):
    """A checkpoint cannot be written, or there is none that may be loaded."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint on disk is not what was written: a checksum, a size or a file is wrong."""


class StateNotFinite(CheckpointError):
    """A state that was to be saved holds NaN or infinities; names the first such tensor."""


class StateTorn(CheckpointError):
    """Writing a state into the live objects failed half-way: the process has to end."""


class ReplayError(SupervisorError):
    """A script that is being fast-forwarded does something else than the recorded run did."""
