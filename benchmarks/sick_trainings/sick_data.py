"""Trainings whose data are to blame: a poisoned sample, a damaged label, a shard in other units."""

from __future__ import annotations

from benchmarks.sick_trainings.scripts import script
from benchmarks.sick_trainings.sick_training import SickTraining

SICK_DATA = (
    SickTraining(
        name="conv: infinite pixel at step 45",
        cause="data",
        text=script("conv", "plain", data="X[8 * 45 + 2, 0, 3, 4] = float('inf')"),
        sample=2,
    ),
    SickTraining(
        name="transformer: token beyond the vocabulary",
        cause="data",
        text=script("transformer", "plain", data="X[8 * 50 + 4, 7] = 99"),
    ),
    SickTraining(
        name="recurrent, shuffled trainer: NaN in one sequence",
        cause="data",
        text=script("recurrent", "trainer", data="X[417, 5] = float('nan')"),
    ),
    SickTraining(
        name="recurrent: damaged label, script raises",
        cause="data",
        text=script("recurrent", "plain", stops=True, data="Y[8 * 65 + 7] = float('-inf')"),
        sample=7,
    ),
    SickTraining(
        name="VAE, clipped, endless loader: NaN at step 72",
        cause="data",
        text=script("vae", "endless", data="X[8 * 72 + 1, 9] = float('nan')"),
        sample=1,
    ),
    SickTraining(
        name="two heads: class 7 of 3",
        cause="data",
        text=script("two heads", "plain", data="self.label[8 * 58 + 3] = 7"),
    ),
    SickTraining(
        name="two heads, accumulating: NaN target",
        cause="data",
        text=script("two heads", "accumulating", data="self.value[8 * 55 + 2] = float('nan')"),
        sample=2,
    ),
    SickTraining(
        name="conv, no loader: NaN in an image drawn by chance",
        cause="data",
        text=script("conv", "drawn", seed=4, data="X[240:243] = float('nan')"),
    ),
    SickTraining(
        name="conv, GradScaler in BF16: image of NaN",
        cause="data",
        text=script(
            "conv",
            "scaled",
            context='torch.autocast("cpu", torch.bfloat16)',
            stops=True,
            data="X[8 * 62 + 5] = float('nan')",
        ),
        sample=5,
    ),
    SickTraining(
        name="recurrent: a shard in other units",
        cause="data",
        text=script("recurrent", "plain", data="Y[8 * 60 : 8 * 62] *= 1e5"),
    ),
)
