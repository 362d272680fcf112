"""Public scripts on two ranks: those of the list whose framework knows torchrun, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from benchmarks.foreign.foreign_script import Foreign

_ON_TWO = {
    "Accelerate nlp_example": "ACCELERATE_USE_CPU=1",
    "Accelerate early_stopping": "ACCELERATE_USE_CPU=1",
    "Accelerate local_sgd": "ACCELERATE_USE_CPU=1",
    "Accelerate checkpointing": "ACCELERATE_USE_CPU=1",
    "diffusion by Diffusers, pictures": "ACCELERATE_USE_CPU=1",
    "TRL SFT by HF's trainer": "",
    "TRL DPO with LoRA": "",
    "TRL reward model": "",
}
"""Name → what its environment says beside."""


def on_two_ranks(scripts: Iterable[Foreign]) -> tuple[Foreign, ...]:
    return tuple(
        replace(
            script,
            name=f"{script.name}, 2 ranks",
            ranks=2,
            environment=f"{script.environment} {_ON_TWO[script.name]}".strip(),
        )
        for script in scripts
        if script.name in _ON_TWO
    )
