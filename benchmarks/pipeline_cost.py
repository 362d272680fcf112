"""What a step costs: the whole pipeline, and each detector, in microseconds of CPU time.

python benchmarks/pipeline_cost.py [--steps 5000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from supervisor.config import load_policy
from supervisor.detectors.registry import build_detectors
from supervisor.pipeline import Pipeline
from supervisor.settings import RunSettings
from supervisor.testing import synthetic_run
from supervisor.worker.core.run_health import MAX_WAITING


def measure_us(update: Callable[[Any], Any], records: list[Any]) -> float:
    """Median of five parts, so that one disturbance does not count."""
    part = len(records) // 5
    costs = []
    for index in range(5):
        begin = time.process_time()
        for record in records[index * part : (index + 1) * part]:
            update(record)
        costs.append((time.process_time() - begin) / part * 1e6)
    return sorted(costs)[2]


def measure_pipeline_us(steps: int = 5000) -> float:
    """The whole default pipeline on a healthy, heavy-tailed run."""
    pipeline = Pipeline(RunSettings(), load_policy())
    return measure_us(pipeline.update, list(synthetic_run("heavy_tailed", steps)))


def measure_together_us(kind: str, steps: int = 5000) -> float:
    """The same a step, in blocks of calm steps as a live run hands them over."""
    pipeline = Pipeline(RunSettings(), load_policy())
    records = [
        replace(record, step_time_s=0.005, batch_size=8, memory_gib=1.0)
        for record in synthetic_run(kind, steps)
    ]
    blocks = [records[at : at + MAX_WAITING] for at in range(0, steps, MAX_WAITING)]
    return measure_us(lambda block: list(pipeline.update_all(block)), blocks) / MAX_WAITING


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    records = list(synthetic_run("heavy_tailed", parser.parse_args().steps))
    for detector in build_detectors({}):
        print(f"{detector.name:20s} {measure_us(detector.update, records):6.2f} us")
    pipeline = Pipeline(RunSettings(), load_policy())
    predictor, ladder = pipeline.predictor, pipeline.ladder
    print(f"{'predictor':20s} {measure_us(lambda r: predictor.update(r, {}), records):6.2f} us")
    pipeline = Pipeline(RunSettings(), load_policy())
    risk = pipeline.update(records[0]).risk
    print(f"{'ladder':20s} {measure_us(lambda r: ladder.decide(r, (), risk), records):6.2f} us")
    pipeline = Pipeline(RunSettings(), load_policy())
    print(f"{'whole pipeline':20s} {measure_us(pipeline.update, records):6.2f} us")
    for kind in ("healthy", "heavy_tailed"):
        print(f"{'together, ' + kind:22s} {measure_together_us(kind):6.2f} us a step")


if __name__ == "__main__":
    main()
