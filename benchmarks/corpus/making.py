"""Makes one trace of the corpus, in whatever process."""

from __future__ import annotations

import warnings
from pathlib import Path

from benchmarks.corpus.recipe import Recipe


def make(arguments: tuple[Recipe, Path]) -> str:
    """Trains one recipe unless its trace is there; returns its name."""
    recipe, folder = arguments
    if not (folder / f"{recipe.name}.npz").is_file():
        import torch

        from benchmarks.corpus.training import train

        torch.set_num_threads(1)
        # A learning-rate bug makes torch warn about what it is there to do.
        warnings.simplefilter("ignore")
        train(recipe).save(folder)
    return recipe.name
