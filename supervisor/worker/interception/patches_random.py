"""The patches by which it is seen that the script looks at the state of a global generator.

A replay has the right state only where the script draws or looks; drawing is seen by the state.
`torch.default_generator.get_state()` itself cannot be patched.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from supervisor.worker.interception.instrument import Seen
from supervisor.worker.interception.outside_dynamo import run_plainly


def watch_random_states(session: Seen) -> None:
    """Patches for the rest of this process's life. Called once, after `instrument`."""
    _patch(session, "get_rng_state", torch, torch.random)
    _patch(session, "get_rng_state", torch.cuda, torch.cuda.random)
    _patch(session, "getstate", random)
    _patch(session, "get_state", np.random)


def _patch(session: Seen, name: str, *modules: Any) -> None:
    original = getattr(modules[0], name)
    interception = session.interception

    @run_plainly
    @functools.wraps(original)
    def look(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and interception.is_ours():
            session.hooks.looks_at_random()
        return original(*args, **kwargs)

    for module in modules:
        setattr(module, name, look)
