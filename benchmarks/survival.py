"""What treatment saves: misfortunes in small trainings, without us, with rules of others, with us.

    python -m benchmarks.survival [--quick] [--jobs 2] [--json FILE] [--tell]

Each case is one training (benchmarks/unlucky_tasks.py), one misfortune and one seed. It is run
alone; in a plain loop that starts it again from the script's own checkpoint when it fails; with
clipping; with the skip-step and the ZClip rule; under `observe_only` (one training, one seed); and
supervised by the default policy. Survived: it ends, and its loss on held-out data is at most 2 %
above that of the same training without misfortune. For misfortunes that last from the first step
(a learning rate far too high, FP16 with Adam's usual epsilon) that is the training as it should
have been.

The other side: healthy trainings, ordinary and hard ones (warm restarts, batches of four), alone
and supervised: how often was one treated, and was it worse for it? And the healthy kinds of
benchmarks/healthy (losses that are usually zero, of mixed sign, that rise on purpose; scripts that
change weights, data or objective themselves): was one treated, and does it end with the weights of
plain python, bit for bit? Kinds that are still treated, as is known, are told with the reason.
Under the default policy; `--policies all` is every shipped one, `--parts kinds` these alone (about
90 minutes), `--kinds` some of them.

With FILE the runs that are in it already are not made again; `--tell` prints what it holds. The
whole table needs about two hours of processor time, `--quick` about 3 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.fault_mark import mark_of
from benchmarks.healthy import KINDS, STILL_TREATED, trial
from benchmarks.plain_runs import PlainRuns
from benchmarks.survival_table import Row, name_of, table, tell_healthy, tell_kinds
from supervisor.analysis.outcome import ReferenceRun, judge
from supervisor.analysis.trial_run import TrialScript, try_script
from supervisor.codes import ActionOutcome
from supervisor.config import available_policies
from supervisor.errors import SupervisorError
from supervisor.events.step_events import ActionEvent

SCRIPT = str(Path(__file__).with_name("unlucky_training.py"))
STEPS = 300
TASKS = ("mlp", "lm", "cnn", "vae", "lstm")
INJECTED = ("nan_gradient", "loss_spike", "weight", "optimizer", "lr_bug", "sigkill", "exception")
ON_FLOATS = ("nan_batch", "wild_batch", "poisoned_sample")
LASTING = ("high_lr", "long_high_lr")
PLAIN_ARMS = ("alone", "loop", "clip", "skip_step", "zclip")
ARMS = (*PLAIN_ARMS, "observe_only", "default")
POLICIES = tuple(policy.name for policy in available_policies())
TOLERANCE = 1.02
SETTINGS = {"checkpoint.every_steps": "25", "checkpoint.max_overhead": "0.2"}
"""A run of a second cannot afford copies at 1 % of its time; a drill does the same."""
HANG = {
    "watchdog.hang_timeout_s": "5",
    "watchdog.stack_interval_s": "0.3",
    "watchdog.grace_s": "1",
}

PARTS = ("misfortunes", "hard", "kinds")

_local = threading.local()
_rows: dict[str, Row] = {}
_lock = threading.Lock()


def cases(seeds: int, *, quick: bool) -> list[Row]:
    """Every combination that means something; the step of the fault comes from the seed."""
    tasks = TASKS[:3] if quick else TASKS
    pairs = [(task, fault) for task in tasks for fault in (*INJECTED, *ON_FLOATS, *LASTING)]
    pairs = [pair for pair in pairs if not (pair[0] == "lm" and pair[1] in ON_FLOATS)]
    pairs += [("half", "none"), ("mlp", "hang")]
    if quick:
        pairs = pairs[::3]
    return [
        {"task": task, "fault": fault, "seed": seed, "at": _at(task, fault, seed)}
        for seed in range(seeds)
        for task, fault in pairs
        if fault != "hang" or seed < 2
    ]


def healthy_cases(seeds: int, *, quick: bool) -> list[Row]:
    kinds = ("no",) if quick else ("no", "restarts", "tiny")
    return [
        {"task": task, "fault": "none", "seed": seed, "at": 0, "hard": hard}
        for seed in range(seeds)
        for task in TASKS
        for hard in kinds
    ]


def kind_cases(seeds: int, *, quick: bool) -> list[Row]:
    kinds = [*KINDS][::5] if quick else [*KINDS]
    return [{"kind": kind, "seed": seed} for seed in range(seeds) for kind in kinds]


def _at(task: str, fault: str, seed: int) -> int:
    return random.Random(f"{task} {fault} {seed}").randrange(STEPS * 3 // 10, STEPS * 7 // 10)


def run_case(case: Row, arms: Iterable[str], folder: Path) -> list[Row]:
    """Runs a case in each arm, and its reference first."""
    if "kind" in case:
        weights = _run(case, "alone", folder)["weights"]
        made = [dict(_run(case, policy, folder)) for policy in arms]
        return [{**row, "same": row["weights"] == weights != ""} for row in made]
    reference = _run(_right(case), "alone", folder)["final_loss"]
    made = []
    for arm in arms:
        row = {**_run(case, arm, folder), "reference_loss": reference}
        final = row["final_loss"]
        row["ratio"] = final / reference if final is not None else math.nan
        row["survived"] = bool(row["completed"] and row["ratio"] <= TOLERANCE)
        made.append(row)
    return made


def _right(case: Row) -> Row:
    """The same training as it should have been."""
    if "kind" in case:
        return case
    task = "mlp" if case["task"] == "half" else case["task"]
    return {**case, "task": task, "fault": "none", "at": 0}


def _is_known(case: Row, arm: str) -> bool:
    return json.dumps([case, arm]) in _rows


def _run(case: Row, arm: str, folder: Path) -> Row:
    key = json.dumps([case, arm])
    with _lock:
        known = _rows.get(key)
    if known is None:
        known = _make(case, arm, Path(tempfile.mkdtemp(dir=folder)))
        with _lock:
            _rows[key] = known
    return known


def _make(case: Row, arm: str, folder: Path) -> Row:
    if "kind" in case:
        kind, seed = case["kind"], case["seed"]
        if arm == "alone":
            return {**case, "arm": arm, **trial.alone(kind, seed, folder)}
        try:
            return {**case, "arm": arm, **trial.supervised(kind, seed, arm, folder, SETTINGS)}
        except RuntimeError as error:
            lost = {"completed": False, "treatments": [], "alerts": 0, "weights": ""}
            return {**case, "arm": arm, **lost, "how": str(error)}
    words = ["--folder", str(folder), "--steps", str(STEPS)]
    for name, value in case.items():
        words += [f"--{name}", str(value)]
    row = {**case, "arm": arm, "steps_lost": None, "interventions": 0, "how": ""}
    if arm in PLAIN_ARMS:
        row |= _plain(words, arm, hangs=case["fault"] == "hang")
    else:
        row |= _supervised(words, arm, folder, hangs=case["fault"] == "hang")
    mark_of(folder).unlink(missing_ok=True)
    result = folder / "result.json"
    row["final_loss"] = json.loads(result.read_text())["final_loss"] if result.exists() else None
    return row


def _plain(words: list[str], arm: str, *, hangs: bool) -> Row:
    if not hasattr(_local, "runs"):
        _local.runs = PlainRuns()
    if arm == "loop":
        words = [*words, "--own-checkpoints"]
    elif arm != "alone":
        words = [*words, "--rule", arm]
    limit_s = 20.0 if hangs else 900.0
    done = _local.runs.run(words, tries=4 if arm == "loop" else 1, timeout_s=limit_s)
    return {"completed": done["code"] == 0, "seconds": done["seconds"]}


def _supervised(words: list[str], arm: str, folder: Path, *, hangs: bool) -> Row:
    script = TrialScript(words=(SCRIPT, *words), options=("--policy", arm))
    settings = {**SETTINGS, **(HANG if hangs else {})}
    run = try_script(script, folder / "run", settings, environment={"OMP_NUM_THREADS": "1"})
    reference = ReferenceRun(losses=(0.0,) * STEPS, seconds=0.0, slowest_step_s=0.0)
    try:
        outcome = judge("", run, reference, run.seconds)
        steps_lost, how = outcome.steps_lost, outcome.detail
    except SupervisorError as error:
        steps_lost, how = None, str(error)
    actions = run.events(ActionEvent)
    treated = [e.name for e in actions if e.outcome is ActionOutcome.APPLIED]
    return {
        "completed": run.returncode == 0,
        "seconds": run.seconds,
        "steps_lost": steps_lost,
        "interventions": sum(name != "checkpoint" for name in treated),
        "stood_still_s": sum(action.cost_s for action in actions),
        "how": how,
    }


Job = tuple[Row, list[str]]


def main() -> int:
    options = _parser().parse_args()
    if options.json and options.json.exists():
        _rows.update(json.loads(options.json.read_text())["runs"])
    jobs = _jobs(options)
    if options.tell:
        known = [(case, [arm for arm in arms if _is_known(case, arm)]) for case, arms in jobs]
        jobs = [(case, arms) for case, arms in known if arms and _is_known(_right(case), "alone")]
    found: list[list[Row]] = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        for made in pool.map(lambda job: run_case(*job, Path(name)), jobs):
            found.append(made)
            if options.tell:
                continue
            _progress(made, len(found), len(jobs))
            if options.json:
                options.json.write_text(json.dumps({"runs": _rows}))
    rows = [row for made in found for row in made]
    kinds = [row for row in rows if "kind" in row]
    calm = [row for row in rows if "hard" in row]
    sick = [row for row in rows if "kind" not in row and "hard" not in row]
    if sick:
        print(table(sick, ARMS))
    for row in sick:
        if row["arm"] == "default" and not row["survived"]:
            print(f"  LOST: {name_of(row)}: loss ratio {row['ratio']:.3f}, {row['how']}")
    if calm:
        print(tell_healthy(calm, STEPS))
    if kinds:
        print(tell_kinds(kinds, STILL_TREATED))
    if options.json and not options.tell:
        document = {"runs": _rows, "cases": sick, "healthy": calm, "kinds": kinds}
        options.json.write_text(json.dumps(document, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a part of the table, one seed")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="these alone")
    parser.add_argument("--seeds", type=int, default=4, help="of each misfortune")
    parser.add_argument("--healthy-seeds", type=int, default=7, help="of each hard training")
    parser.add_argument("--kind-seeds", type=int, default=1, help="of each healthy kind")
    parser.add_argument("--faults", nargs="*", help="these misfortunes alone")
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], help="these healthy kinds alone")
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=ARMS, help="these alone")
    parser.add_argument(
        "--policies", nargs="*", default=["default"], choices=["all", *POLICIES],
        help="under which the healthy kinds are run",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tell", action="store_true", help="what FILE holds; run nothing")
    return parser


def _jobs(options: argparse.Namespace) -> list[Job]:
    """What is to be run; what is done first is a whole table already."""
    parts = ["misfortunes"] if options.faults else options.parts
    seeds, hard_seeds = (1, 1) if options.quick else (options.seeds, options.healthy_seeds)
    jobs: list[Job] = []
    if "misfortunes" in parts:
        sick = cases(seeds, quick=options.quick)
        sick = [case for case in sick if case["fault"] in (options.faults or [case["fault"]])]
        jobs += [(case, [*_arms(case)]) for case in sick]
    if "hard" in parts:
        calm = healthy_cases(hard_seeds, quick=options.quick)
        jobs += [(case, ["alone", "default"]) for case in calm]
    jobs = [(case, [arm for arm in arms if arm in options.arms]) for case, arms in jobs]
    jobs = sorted((job for job in jobs if job[1]), key=lambda job: int(job[0]["seed"]))
    if "kinds" in parts:
        policies = POLICIES if "all" in options.policies else options.policies
        kinds = kind_cases(options.kind_seeds, quick=options.quick)
        kinds = [case for case in kinds if case["kind"] in (options.kinds or [case["kind"]])]
        jobs += [(case, [policy]) for policy in policies for case in kinds]
    return jobs


def _arms(case: Row) -> Sequence[str]:
    """Observing does the same at every seed, so one will do."""
    if case["seed"] == 0 and case["task"] in ("mlp", "half"):
        return ARMS
    return tuple(arm for arm in ARMS if arm != "observe_only")


def _progress(made: list[Row], done: int, of: int) -> None:
    ours = made[-1]
    if "kind" in ours:
        verdict = "the same" if ours["same"] else "OTHER WEIGHTS"
        told = f"{ours['kind']} seed {ours['seed']}, {ours['arm']}: {verdict}"
        told += f", {len(ours['treatments'])} treatments, {ours['alerts']} alerts"
    else:
        verdict = "survived" if ours["survived"] else "LOST"
        told = f"{name_of(ours)}: {verdict}, loss ratio {ours['ratio']:.3f}, {ours['how']}"
    print(f"[{done}/{of}] {told}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
