"""Published rules for loss spikes and divergence, for comparison on the same logs.

Each rule is a small class with `update(record) -> bool`, whether it alarms at this step, and
`measure(record)`, how strong its evidence is in units of the published line.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.rules.base import Rule
from benchmarks.rules.cumulative import Cusum, PageHinkleyRule
from benchmarks.rules.frameworks import KillLossSpike, MegatronSpike, SixSigma
from benchmarks.rules.gradient_clipping import NormJump, ZClip
from benchmarks.rules.simple import BestBlock, RelativeJump, RollingMad
from benchmarks.rules.trends import NoisyOr, SageMaker

RULES: dict[str, Callable[[int], Rule]] = {
    "rolling MAD k=2": lambda rows: RollingMad(2.0),
    "rolling MAD k=5": lambda rows: RollingMad(5.0),
    "rolling MAD k=8": lambda rows: RollingMad(8.0),
    "relative jump 50 %": lambda rows: RelativeJump(),
    "KillLossSpike (llm-foundry)": lambda rows: KillLossSpike(rows),
    "6 sigma, loss (OLMo-core)": lambda rows: SixSigma(with_norm=False),
    "6 sigma, loss or norm (OLMo-core)": lambda rows: SixSigma(with_norm=True),
    "10 x start (Megatron)": lambda rows: MegatronSpike(),
    "ZClip z > 2.5": lambda rows: ZClip(),
    "norm > 5 x two steps ago": lambda rows: NormJump(),
    "noisy-OR of four": lambda rows: NoisyOr(),
    "Page-Hinkley on z": lambda rows: PageHinkleyRule(),
    "CUSUM on z": lambda rows: Cusum(),
    "best block": lambda rows: BestBlock(),
    "not decreasing, NaN (SageMaker)": lambda rows: SageMaker(),
}
"""Name → maker; the argument is the number of rows of the run."""
