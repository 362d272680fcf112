"""All trainings of the corpus."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.corpus.recipe import SPLIT_OF_ARCHITECTURE, Recipe

RATES: dict[str, dict[str, float]] = {
    "mlp": {"sgd": 0.05, "momentum": 0.01, "adam": 2e-3, "adamw": 2e-3, "lion": 4e-4},
    "cnn": {"sgd": 0.1, "momentum": 0.02, "adam": 3e-3, "adamw": 3e-3, "lion": 6e-4},
    "transformer": {"sgd": 0.3, "momentum": 0.05, "adam": 4e-3, "adamw": 4e-3, "lion": 6e-4},
    "lstm": {"sgd": 1.0, "momentum": 0.2, "adam": 6e-3, "adamw": 6e-3, "lion": 1e-3},
    "vae": {"sgd": 0.05, "momentum": 0.01, "adam": 2e-3, "adamw": 2e-3, "lion": 3e-4},
    "gan": {"sgd": 0.1, "momentum": 0.02, "adam": 2e-3, "adamw": 2e-3, "lion": 4e-4},
    "pair": {"sgd": 0.3, "momentum": 0.03, "adam": 2e-3, "adamw": 2e-3, "lion": 6e-4},
    "policy": {"sgd": 0.3, "momentum": 0.05, "adam": 4e-3, "adamw": 4e-3, "lion": 7e-4},
    "reward": {"sgd": 1.0, "momentum": 0.2, "adam": 5e-3, "adamw": 5e-3, "lion": 1e-3},
}
"""Rates at which each pair learns steadily."""

ADAPTIVE = ("adam", "adamw", "lion")
HALF = {"mlp": "fp16", "transformer": "fp16", "policy": "fp16", "reward": "bf16"}
"""Half precision that PyTorch has on a CPU at a bearable speed for the architecture."""


def catalogue() -> list[Recipe]:
    """Healthy and sick recipes in a fixed order.

    The pair has those of its own split only: it came later, and the test split stays as it was.
    """
    return [
        recipe
        for architecture in SPLIT_OF_ARCHITECTURE
        for make in (_healthy, _sick)
        for recipe in make(architecture)
        if architecture != "pair" or recipe.split != "test"
    ]


def _recipe(architecture: str, condition: str, optimizer: str, seed: int, **more: object) -> Recipe:
    factor = float(more.pop("factor", 1.0))  # type: ignore[arg-type]
    return Recipe(
        architecture=architecture,
        condition=condition,
        optimizer=optimizer,
        lr=round(RATES[architecture][optimizer] * factor, 8),
        clip=1.0 if architecture in ("transformer", "lstm") and not more.get("sick") else 0.0,
        seed=seed,
        **{"sick": False, **more},  # type: ignore[arg-type]
    )


def _healthy(architecture: str) -> Iterator[Recipe]:
    half = HALF.get(architecture, "bf16")
    for seed, optimizer in enumerate(RATES[architecture]):
        yield _recipe(architecture, "plain", optimizer, seed, steps=600)
        if seed % 2 == 0:
            yield _recipe(architecture, "high_lr", optimizer, seed + 10, factor=3.0)
        else:
            more = {"severity": 2.0, "factor": 0.5}
            yield _recipe(architecture, "small_batch", optimizer, seed + 20, **more)
    for seed, optimizer in enumerate(("momentum", "adam")):
        yield _recipe(architecture, "noisy_labels", optimizer, seed + 30, severity=0.3)
        yield _recipe(architecture, "warm_restarts", optimizer, seed + 40, factor=2.0)
        yield _recipe(architecture, "curriculum", optimizer, seed + 50)
        yield _recipe(architecture, "few_samples", optimizer, seed + 60, severity=16.0)
        yield _recipe(architecture, "lr_drop", optimizer, seed + 70, factor=2.0)
    yield _recipe(architecture, "plain", "momentum", 80, precision="bf16")
    yield _recipe(architecture, "high_lr", "sgd", 95, precision="bf16", factor=2.0)
    for seed in range(2):
        yield _recipe(architecture, "plain", "adamw", seed + 90, precision=half)
    if architecture in ("mlp", "cnn"):
        for seed, optimizer in enumerate(("sgd", "momentum", "adamw")):
            yield _recipe(architecture, "mixup", optimizer, seed + 100)


def _sick(architecture: str) -> Iterator[Recipe]:
    def sick(condition: str, optimizer: str, seed: int, **more: object) -> Recipe:
        return _recipe(architecture, condition, optimizer, seed + 200, sick=True, **more)

    for seed, (optimizer, factor) in enumerate((("sgd", 20.0), ("momentum", 20.0), ("adam", 30.0))):
        yield sick("lr_too_high", optimizer, seed, factor=factor)
    for seed, optimizer in enumerate(("sgd", "momentum", "adam", "adamw", "lion")):
        yield sick("lr_grows", optimizer, seed, severity=(1.03, 1.06)[seed % 2], steps=500)
        if optimizer in ("momentum", "adam", "lion"):
            yield sick("lr_jump", optimizer, seed, severity=30.0)
    for seed, optimizer in enumerate(("momentum", "adam")):
        yield sick("label_corruption", optimizer, seed, severity=1.0)
        yield sick("data_corruption", optimizer, seed, severity=30.0)
        yield sick("weight_corruption", optimizer, seed, severity=(2.0**10, 2.0**64)[seed % 2])
        yield sick("accumulation_bug", optimizer, seed)
    for seed in range(2):
        yield sick("label_drift", ADAPTIVE[seed], seed, severity=1.0, steps=500)
        yield sick("momentum_too_high", "momentum", seed, factor=2.0)
        yield sick("bad_batch", ("momentum", "adamw")[seed], seed, severity=100.0)
    yield sick("bad_initialisation", "momentum", 0, severity=4.0)
    yield sick("no_warmup", "adam", 0, factor=15.0)
    yield sick("stale_second_moment", "adam", 0, severity=10.0)
    if HALF.get(architecture) == "fp16":
        for seed, optimizer in enumerate(("sgd", "adamw")):
            yield sick("fp16_overflow", optimizer, seed, precision="fp16", severity=1.12)
            yield sick("lr_grows", optimizer, seed + 5, precision="fp16", severity=1.06, steps=500)
    if architecture == "lstm":
        for seed in range(3):
            yield sick("exploding_recurrent", "sgd", seed, factor=10.0)
    if architecture == "vae":
        for seed, optimizer in enumerate(("adam", "adamw", "lion")):
            yield sick("kl_weight", optimizer, seed, severity=30.0)
    if architecture == "policy":
        for seed, optimizer in enumerate(("adam", "adamw", "sgd")):
            yield sick("entropy_collapse", optimizer, seed, severity=2.0, factor=3.0)
