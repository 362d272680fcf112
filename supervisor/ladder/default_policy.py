"""The default policy as an object, for code that reads no policy files."""

from __future__ import annotations

from supervisor.settings import PolicySettings, RungSettings


def default_rungs() -> list[RungSettings]:
    """The rungs of REQUIREMENTS K11."""
    return [
        RungSettings(at=0.3, actions=["checkpoint"]),
        RungSettings(at=0.5, actions=["cut_lr", "tighten_clip"]),
        RungSettings(at=0.7, actions=["fp32_fallback"], causes=["loss_scale", "nonfinite"]),
        RungSettings(at=0.7, actions=["rollback"]),
        RungSettings(at=0.9, actions=["restart"]),
    ]


def default_policy() -> PolicySettings:
    """A policy with the default rungs."""
    return PolicySettings(rungs=default_rungs())
