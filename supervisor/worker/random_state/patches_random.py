"""The patches by which it is seen that the script looks at the state of a global generator, and by
which the names of its temporary files are the same in a replay.

A replay has the right state only where the script draws or looks; drawing is seen by the state.
`torch.default_generator.get_state()` itself cannot be patched.

The patch by which worker processes that are started anew hash texts as this one does.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from multiprocessing import util
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from supervisor.worker.core.call_state import run_plainly
from supervisor.worker.core.part import Sides
from supervisor.worker.core.training_hooks import Seen
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.outside_draws.patches_draws import from_system, replace_method
from supervisor.worker.random_state.random_states import ReadsRandom

_SEED_BYTES = 8
"""Of what torch itself draws for a seed."""


def watch_random_states(session: Seen, generators: Sides[ReadsRandom]) -> None:
    """Patches for the rest of this process's life. Called once, after `instrument`."""
    _patch(session, generators, "get_rng_state", torch, torch.random)
    _patch(session, generators, "get_rng_state", torch.cuda, torch.cuda.random)
    _patch(session, generators, "getstate", random)
    _patch(session, generators, "get_state", np.random)


def _patch(session: Seen, generators: Sides[ReadsRandom], name: str, *modules: Any) -> None:
    original = getattr(modules[0], name)
    call_state = session.call_state

    @run_plainly
    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and call_state.is_ours():
            generators.now.was_read()
        return original(*args, **kwargs)

    for module in modules:
        setattr(module, name, read)


def watch_seeds() -> None:
    """`torch.seed()` and `Generator.seed()` draw from the system: that is recorded, too."""

    def seed(self: torch.Generator) -> int:
        drawn = OUTSIDE.draw("torch's seed()", lambda: from_system(_SEED_BYTES), _SEED_BYTES)
        found = int.from_bytes(drawn, "little")
        self.manual_seed(found)
        return found

    replace_method(torch._C.Generator, "seed", seed)


def begin_temporary_names(session: Seen, seed: int) -> None:
    """From here on the n-th temporary file or folder that the script makes has the same name in
    each attempt, where that is free. In other processes, other threads and regions it is any.

    Args:
        seed: of the run, which nobody else knows.
    """
    original = getattr(tempfile, "_get_candidate_names", None)
    if original is None:
        return
    call_state = session.call_state
    numbers = itertools.count()

    def names() -> Any:
        if not call_state.is_ours():
            return original()
        return _names(random.Random(f"{seed} {next(numbers)}"))

    tempfile._get_candidate_names = names  # type: ignore[attr-defined]


def _names(chance: random.Random) -> Iterator[str]:
    while True:
        yield "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789_", k=8))


_SALT = "PYTHONHASHSEED"


def hand_on_salt(salt: str) -> None:
    """Gives the salt to what `multiprocessing` starts by spawn or forkserver; called once.

    A loader's worker that goes through a set of texts must find the order that its like had in the
    attempt before. The script's own environment does not have the variable.
    """
    original = util.spawnv_passfds

    @functools.wraps(original)
    def spawnv_passfds(*args: Any) -> Any:
        if _SALT in os.environ:
            return original(*args)
        os.putenv(_SALT, salt)  # what is started inherits it; `os.environ` does not show it
        try:
            return original(*args)
        finally:
            os.unsetenv(_SALT)

    util.spawnv_passfds = spawnv_passfds  # type: ignore[assignment]
