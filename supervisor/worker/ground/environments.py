"""Whether the training data come from an environment that the model acts in."""

from __future__ import annotations

import sys

LIBRARIES = frozenset(
    {
        *("gymnasium", "gym", "pettingzoo", "dm_env", "envpool", "procgen"),
        *("stable_baselines3", "torchrl", "tianshou", "cleanrl_utils", "rsl_rl", "pfrl"),
    }
)
"""Libraries of environments, and of agents that bring environments of their own."""


def has_environment() -> bool:
    """Whether one of `LIBRARIES` is loaded: hardly anybody loads them but to let a policy act."""
    return not LIBRARIES.isdisjoint(sys.modules)
