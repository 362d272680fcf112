"""One flipped bit in a training: is it found, is it healed, and would it have hurt?

    python -m benchmarks.corruption [--runs 448] [--healthy-steps 100000] [--jobs 2] [--json FILE]

Each run is a small real training (benchmarks/flipped_training.py): five models, five optimizers,
FP32 and BF16. At a random step a random element of one kind of memory loses one bit: weights, the
optimizer's first and second moments, running means and variances, the average that the script keeps
of its weights, and a gradient between backward and update. Every bit position of each comes once;
further runs take the four highest bits, which are nearly all that hurt. The same flip is met alone;
with the gradients clipped; with updates left out whose loss leaps; and supervised by the default
policy.

Hurt: the training ends with no result, or its loss on held-out data (that of its weights, or that
of their average) is above the highest of nine undisturbed trainings that differ by their seed,
this one's and eight others', and more than 1 % above this one's. The clipping is at the largest
norm of the undisturbed run, so that it changes nothing there. Where a rule would not have acted in
the training that is left alone, it is not run again.

The other side: undisturbed trainings with other seeds, supervised; whatever is called corrupted
there is a false alarm.

With FILE the runs that are in it already are not made again; `--tell` prints what it holds. All
takes about two hours of processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.corruption_table import (
    ARMS,
    CLOSE,
    RULES,
    Row,
    tell_healthy,
    tell_missed,
    tell_results,
)
from benchmarks.fault_mark import mark_of
from benchmarks.flipped_models import MODELS, OPTIMIZERS
from benchmarks.flipped_training import TARGETS
from benchmarks.generated.warm_client import WarmClient
from supervisor.analysis.outcome import ReferenceRun, judge
from supervisor.analysis.trial_run import TrialRun
from supervisor.codes import ActionOutcome
from supervisor.errors import SupervisorError
from supervisor.events.step_events import ActionEvent, CorruptionFound
from supervisor.parent.terminal.outcome import EXIT_INTERRUPTED
from supervisor.storage.run.rundir import RunDirectory

STEPS = 300
HEALTHY_STEPS = 2000
BITS = {"float32": 32, "bfloat16": 16}
SEEDS = 3
"""Of the trainings that are struck."""
OTHERS = range(100, 108)
"""Seeds of the undisturbed trainings that tell how far losses differ by chance."""
HEALTHY_SEED = 1000
MATTER = 36
"""Runs that are made first."""
NORMALISED = ("cnn", "autoencoder")
_SCRIPT = "from benchmarks.flipped_training import train\n\ntrain({words})\n"


def cases(runs: int, seed: int) -> list[Row]:
    """Every bit of every kind of memory once, then the highest ones again and again."""
    places = [(t, dtype, bit) for t in TARGETS for dtype in BITS for bit in range(BITS[dtype])]
    highest = [place for place in places if place[2] >= BITS[place[1]] - 4]
    random.Random(seed).shuffle(places)
    made = []
    for number in range(runs):
        target, dtype, bit = [*places, *highest * (runs // len(highest))][number]
        chance = random.Random(f"{seed} {number}")
        model = chance.choice(NORMALISED if target in ("mean", "variance") else MODELS)
        flip = {
            "target": target,
            "bit": bit,
            "step": chance.randrange(STEPS * 3 // 10, STEPS * 7 // 10),
            "seed": chance.randrange(10**6),
        }
        optimizer = chance.choice(_optimizers(target))
        training = {"model": model, "optimizer": optimizer, "dtype": dtype}
        made.append({**training, "seed": chance.randrange(SEEDS), "flip": flip})
    return made


def _optimizers(target: str) -> tuple[str, ...]:
    """Those that have such an entry."""
    without = {"first": ("Adagrad",), "second": ("SGD", "Lion")}.get(target, ())
    return tuple(name for name in OPTIMIZERS if name not in without)


def healthy_cases(steps: int) -> list[Row]:
    kinds = [(m, o, d) for m in MODELS for o in OPTIMIZERS for d in BITS]
    return [
        {
            "model": kinds[number % len(kinds)][0],
            "optimizer": kinds[number % len(kinds)][1],
            "dtype": kinds[number % len(kinds)][2],
            "seed": HEALTHY_SEED + number,
        }
        for number in range(math.ceil(steps / HEALTHY_STEPS))
    ]


Job = tuple[Row, str]
"""A case, and an arm: ``undisturbed``, ``healthy``, or one of `ARMS`."""


def key_of(case: Row, arm: str) -> str:
    return json.dumps([case, arm])


def undisturbed(case: Row, seed: int) -> Row:
    return {**{name: case[name] for name in ("model", "optimizer", "dtype")}, "seed": seed}


# --- in a process of its own ---------------------------------------------------------------------


@cache
def _client() -> WarmClient:
    return WarmClient()


def run_job(job: tuple[Row, str, float | None]) -> Row:
    """Runs a case in one arm; returns what became of it."""
    case, arm, clip = job
    folder = Path(tempfile.mkdtemp(prefix="flipped-"))
    try:
        words = {**case, "steps": HEALTHY_STEPS if arm == "healthy" else STEPS}
        words["clip"] = clip if arm == "clip" else None
        words["skips_spikes"] = arm == "spike rule"
        script = folder / "script.py"
        given = ", ".join(f"{name}={value!r}" for name, value in words.items())
        script.write_text(_SCRIPT.format(words=f"{str(folder)!r}, {given}"))
        if arm in ("supervised", "healthy"):
            row = _supervised(folder, script)
        else:
            left = _client().plain(folder, str(script), count_to=folder / "moments.json")
            row = {"code": left.returncode}
        if row["code"] == EXIT_INTERRUPTED or not _client().is_alive:
            raise SystemExit("a run was ended from outside: begin again, what is done is kept")
        for name, path in (("result", folder / "result.json"), ("struck", mark_of(folder))):
            row[name] = json.loads(path.read_text()) if path.exists() else None
        return row
    finally:
        mark_of(folder).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _supervised(folder: Path, script: Path) -> Row:
    left = _client().supervised(folder, str(script), settings=())
    run = TrialRun(
        rundir=RunDirectory(folder / "run"), returncode=left.returncode, seconds=0.0, output=""
    )
    try:
        nothing = ReferenceRun(losses=(0.0,) * STEPS, seconds=0.0, slowest_step_s=0.0)
        outcome = judge("", run, nothing, 0.0)
        steps_lost, how = outcome.steps_lost, outcome.detail
    except SupervisorError as error:
        steps_lost, how = None, str(error)
    actions = run.events(ActionEvent)
    done = [e.name for e in actions if e.outcome is ActionOutcome.APPLIED]
    return {
        "code": left.returncode,
        "found": [
            {
                "tensor": event.tensor, "step": event.step, "rule": event.rule, "bit": event.bit,
                "healed": event.healed, "value": repr(event.value), "bound": repr(event.bound),
            }
            for event in run.events(CorruptionFound)
        ],
        "treated": [name for name in done if name != "checkpoint"],
        "steps_lost": steps_lost,
        "how": how,
    }  # fmt: skip


# --- all of them ---------------------------------------------------------------------------------


def main() -> int:
    options = _parser().parse_args()
    known: dict[str, Any] = {}
    if options.json and options.json.exists():
        known = json.loads(options.json.read_text())["runs"]
    struck = cases(options.runs, options.seed)
    calm = healthy_cases(options.healthy_steps)
    seeds = (*range(SEEDS), *OTHERS)
    kinds = {key_of(undisturbed(case, 0), ""): case for case in struck}.values()
    first = [(undisturbed(case, seed), "undisturbed") for case in kinds for seed in seeds]
    alone = [(case, "alone") for case in struck]
    rules = [(case, arm) for case in struck for arm in RULES if arm in options.arms]
    ours = [(case, "supervised") for case in struck if "supervised" in options.arms]
    healthy = [(case, "healthy") for case in calm]
    if not options.tell:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            _run(first, known, pool, options.json)
            _run(alone, known, pool, options.json)
            _take_over(rules, known)
            _run(rules, known, pool, options.json)
            ours.sort(key=lambda job: not _hurts_alone(job[0], known))  # what matters comes first
            _run(ours[:MATTER], known, pool, options.json)
            _run(healthy, known, pool, options.json)
            _run(ours, known, pool, options.json)
    rows = [row for case in struck for row in _judged(case, options.arms, known)]
    print(tell_results(rows))
    print(tell_missed(rows))
    print(
        tell_healthy(
            [known[key_of(*job)] for job in healthy if key_of(*job) in known], HEALTHY_STEPS
        )
    )
    if options.json and not options.tell:
        document = {"runs": known, "cases": rows}
        options.json.write_text(json.dumps(document, indent=1))
    return 0


def _run(
    jobs: Iterable[Job], known: dict[str, Any], pool: ProcessPoolExecutor, file: Path | None
) -> None:
    left = [job for job in jobs if key_of(*job) not in known]
    given = [(case, arm, _clip(case, known) if arm == "clip" else None) for case, arm in left]
    for number, (job, row) in enumerate(zip(left, pool.map(run_job, given), strict=True), 1):
        known[key_of(*job)] = row
        if number % 50 == 0 or number == len(left):
            print(f"[{number}/{len(left)}]", flush=True)
            if file:
                file.write_text(json.dumps({"runs": known}))


def _hurts_alone(case: Row, known: dict[str, Any]) -> bool:
    return any(row["hurt"] for row in _judged(case, ["alone"], known))


def _take_over(rules: Iterable[Job], known: dict[str, Any]) -> None:
    """What a rule that never acts does is known."""
    for case, arm in rules:
        row = known[key_of(case, "alone")]
        result = row["result"]
        if key_of(case, arm) in known or result is None:
            continue
        acts = result["has_leapt"]
        if arm == "clip":
            acts = not result[_NORM] <= _clip(case, known)
        if not acts:
            known[key_of(case, arm)] = row


def _clip(case: Row, known: dict[str, Any]) -> float:
    return float(known[key_of(undisturbed(case, case["seed"]), "undisturbed")]["result"][_NORM])


_NORM = "largest_norm"
_LOSSES = ("loss", "average_loss")


def _judged(case: Row, arms: Iterable[str], known: dict[str, Any]) -> Iterator[Row]:
    """The case in every arm of which there is a run, beside its undisturbed trainings."""
    own = known.get(key_of(undisturbed(case, case["seed"]), "undisturbed"))
    others = [known.get(key_of(undisturbed(case, seed), "undisturbed")) for seed in OTHERS]
    if own is None or None in others:
        return
    for arm in arms:
        row = known.get(key_of(case, arm))
        if row is None:
            continue
        result, usual = row["result"], own["result"]
        limits = {
            n: max(CLOSE * usual[n], *(other["result"][n] for other in others)) for n in _LOSSES
        }
        is_hurt = result is None or not all(result[n] <= limits[n] for n in _LOSSES)
        ratios = [result[n] / usual[n] for n in _LOSSES] if result else [math.inf]
        ratio = math.inf if any(map(math.isnan, ratios)) else max(ratios)
        yield {**case, "arm": arm, **row, "hurt": is_hurt, "ratio": ratio}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=448, help="flips; 336 are every bit once")
    parser.add_argument("--healthy-steps", type=int, default=100_000, help="without any fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=ARMS, help="these alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tell", action="store_true", help="what FILE holds; run nothing")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
