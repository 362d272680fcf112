"""The patches by which it is seen that the script looks at the state of a global generator, and by
which the names of its temporary files are the same in a replay.

A replay has the right state only where the script draws or looks; drawing is seen by the state.
`torch.default_generator.get_state()` itself cannot be patched.
"""

from __future__ import annotations

import functools
import itertools
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from supervisor.worker.core.sides import Sides
from supervisor.worker.interception.outside_dynamo import run_plainly
from supervisor.worker.interception.training_hooks import Seen
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.outside_draws.sources import from_system, replace_method
from supervisor.worker.recording.random_states import LooksAtRandom

_SEED_BYTES = 8
"""Of what torch itself draws for a seed."""


def watch_random_states(session: Seen, generators: Sides[LooksAtRandom]) -> None:
    """Patches for the rest of this process's life. Called once, after `instrument`."""
    _patch(session, generators, "get_rng_state", torch, torch.random)
    _patch(session, generators, "get_rng_state", torch.cuda, torch.cuda.random)
    _patch(session, generators, "getstate", random)
    _patch(session, generators, "get_state", np.random)


def _patch(session: Seen, generators: Sides[LooksAtRandom], name: str, *modules: Any) -> None:
    original = getattr(modules[0], name)
    interception = session.interception

    @run_plainly
    @functools.wraps(original)
    def look(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and interception.is_ours():
            generators.now.looked_at()
        return original(*args, **kwargs)

    for module in modules:
        setattr(module, name, look)


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
    interception = session.interception
    numbers = itertools.count()

    def names() -> Any:
        if not interception.is_ours():
            return original()
        return _names(random.Random(f"{seed} {next(numbers)}"))

    tempfile._get_candidate_names = names  # type: ignore[attr-defined]


def _names(chance: random.Random) -> Iterator[str]:
    while True:
        yield "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789_", k=8))
