"""Whether the training data come from an environment that the model acts in."""

from __future__ import annotations

import sys

LIBRARIES = frozenset(
    {
        *("gymnasium", "gym", "pettingzoo", "dm_env", "envpool", "procgen"),
        *("stable_baselines3", "torchrl", "tianshou", "cleanrl_utils", "rsl_rl", "pfrl"),
        *(f"trl.trainer.{kind}_trainer" for kind in ("grpo", "ppo", "ppov2", "rloo")),
        *("trl.experimental.async_grpo", "trl.experimental.ppo"),
    }
)
"""Libraries of environments, and of agents that bring environments of their own; of TRL the modules
that it loads for those of its trainers that make their own data (DPO's and a reward model's are
given)."""


def has_environment() -> bool:
    """Whether one of `LIBRARIES` is loaded: hardly anybody loads them but to let a policy act."""
    return not LIBRARIES.isdisjoint(sys.modules)
