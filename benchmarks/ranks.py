"""Several ranks: random kills beside torchrun's undisturbed end, overhead, and agreement.

    python -m benchmarks.ranks [--kills 60] [--seed 1] [--overhead 0] [--agreement] [--json FILE]

``--kills``: each kills one rank of a run (script, number of ranks, rank, step and moment at random,
also within a save, and again within the replay; saves by steps or by the clock) and compares the
digest of the final weights with torchrun's, and what the journal said with what is true. With
``--json`` the same command goes on where it stopped. ``--overhead N``: mean step in N pairs of
runs, torchrun's and the supervisor's in turn.
``--agreement``: what an exchange of one step's message costs between two processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rank_runs import Killer, run_supervised, run_torchrun
from supervisor.records import StepRecord
from supervisor.storage.run.mailboxes import StepMailbox
from supervisor.worker.ranks.agreement import StepMessage

MODES = ("ddp", "zero1", "fsdp2")
KILLED = (*MODES, "ddp-slow", "fsdp2-slow")
STEPS_MOMENTS = ("forward", "backward", "update", "after")
MOMENTS = (*STEPS_MOMENTS, "save", "replay")
SAVES = ("checkpoint.every_steps=9", "checkpoint.every_s=0.1")
STEPS = 60
EXCHANGES = 5000


def strike(draw: random.Random, expected: dict[tuple[str, int], str]) -> dict[str, Any]:
    """Kills one rank of one run, in a replay a second one; returns what was said and is true."""
    mode, ranks = draw.choice(KILLED), draw.choice((2, 3))
    if (mode, ranks) not in expected:
        expected[mode, ranks] = run_torchrun(mode, ranks, STEPS)[0]["digest"]
    moment, saves = draw.choice(MOMENTS), draw.choice(SAVES)
    fault = {"kind": "sigkill", "rank": draw.randrange(ranks), "step": draw.randrange(3, STEPS - 2)}
    killer = None
    settings = [saves]
    if moment in ("save", "replay"):
        killer = Killer.drawn(moment, ranks, draw)
    if moment != "save":
        fault["moment"] = draw.choice(STEPS_MOMENTS) if moment == "replay" else moment
        faults = ", ".join(f"{key}: {value}" for key, value in fault.items())
        settings.append(f"faults=[{{{faults}}}]")
    code, ends, events = run_supervised(mode, ranks, STEPS, *settings, killer=killer)
    resumed = [event for event in events if event["kind"] == "resumed"]
    last = max((event["attempt"] for event in resumed), default=0)  # what it says stands
    said = {event["exactness"] for event in resumed if event["attempt"] == last}
    why = {event["reason"] for event in resumed if event["exactness"] != "exact"}
    digests = {end["digest"] for end in ends}
    equal = len(ends) == ranks and digests == {expected[mode, ranks]}
    return {
        "mode": mode,
        "ranks": ranks,
        "saves": saves,
        **fault,
        "moment": moment,
        "killed_in_it": killer.hit if killer else None,
        "code": code,
        "attempts": sum(event["kind"] == "attempt_started" for event in events),
        "said": sorted(said) or ["from the start"],
        "why": sorted(why),
        "batches_left_out": sum(event["batches_left_out"] for event in resumed),
        "equal": equal,
        "events": [] if equal else events,  # to find out why
    }


def summary(strikes: list[dict[str, Any]]) -> str:
    """One line; ``lost`` are runs that did not end by themselves with 0."""
    exact = sum(one["equal"] and one["said"] == ["exact"] for one in strikes)
    anew = sum(one["equal"] and one["said"] == ["from the start"] for one in strikes)
    false = sum(not one["equal"] and one["said"] == ["exact"] for one in strikes)
    lost = sum(one["code"] != 0 for one in strikes)
    return (
        f"{len(strikes)} runs: {exact} exact and true, {anew} from the start and equal, "
        f"{false} false exact, {lost} lost"
    )


def measure_overhead(pairs: int) -> dict[str, Any]:
    """Mean steps of pairs of runs, DDP on 2 ranks."""
    ratios = []
    for _ in range(pairs):
        plain = run_torchrun("ddp", 2, 600)
        _, ends, _ = run_supervised("ddp", 2, 600)
        ratios.append(
            statistics.mean(end["step_s"] for end in ends)
            / statistics.mean(end["step_s"] for end in plain)
        )
    return {"pairs": pairs, "median": statistics.median(ratios), "ratios": ratios}


def _exchange(path: str, rank: int, found: Any) -> None:
    board = StepMailbox(Path(path), rank, 2)
    record = StepRecord(step=0, loss=1.0, loss_seen=True, grad_norm=1.0, grad_norm_seen=True)
    times = []
    for _ in range(EXCHANGES):
        started = time.perf_counter()
        told = board.exchange(StepMessage(record=record).pack(board.max_bytes)) or []
        for other, data in enumerate(told):
            if other != rank:
                StepMessage.unpack(data)
        times.append(time.perf_counter() - started)
    found.put(statistics.median(times) * 1e6)


def measure_agreement() -> dict[str, float]:
    """Microseconds of an exchange between two processes that do nothing else."""
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_exchange, args=(f"{folder}/board", rank, found))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        medians = [found.get() for _ in ranks]
        for rank in ranks:
            rank.join()
    return {"exchange_us": max(medians)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--overhead", type=int, default=0, metavar="PAIRS")
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.agreement:
        result["agreement"] = measure_agreement()
        print(result["agreement"], flush=True)
    if options.overhead:
        result["overhead"] = measure_overhead(options.overhead)
        print(result["overhead"], flush=True)
    known = options.json is not None and options.json.exists()
    strikes = json.loads(options.json.read_text()).get("kills", []) if known else []
    result["kills"] = strikes
    expected = dict[tuple[str, int], str]()
    for number in range(len(strikes), options.kills):
        strikes.append(strike(random.Random(f"{options.seed}:{number}"), expected))
        print(strikes[-1], flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1))
    if strikes:
        print(summary(strikes))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
