"""Several ranks: random kills beside torchrun's undisturbed end, overhead, and agreement.

    python -m benchmarks.ranks [--kills 60] [--seed 1] [--overhead 0] [--agreement] [--json FILE]

``--kills``: each kills one rank once (script, number of ranks, rank, step and moment at random) and
compares the digest of the final weights with torchrun's, and what the journal said with what is
true. ``--overhead N``: mean step in N pairs of runs, torchrun's and the supervisor's in turn.
``--agreement``: what an exchange of one step's message costs between two processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from supervisor.records import StepRecord
from supervisor.storage.run.rank_board import RankBoard
from supervisor.worker.group.step_message import StepMessage

TRAINER = Path(__file__).with_name("ranks_trainer.py")
MODES = ("ddp", "zero1", "fsdp2")
MOMENTS = ("forward", "backward", "update", "after")
STEPS = 60
EXCHANGES = 5000
TIMEOUT_S = 240.0


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _ends(folder: Path, ranks: int) -> list[dict[str, Any]]:
    paths = [folder / f"end_{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def run_torchrun(mode: str, ranks: int, steps: int) -> list[dict[str, Any]]:
    """Returns what each rank has written at its end."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        line += ["--nproc-per-node", str(ranks), str(TRAINER), mode, str(steps), folder]
        subprocess.run(line, check=True, capture_output=True, timeout=600, env=_environment())
        return _ends(Path(folder), ranks)


def run_supervised(
    mode: str, ranks: int, steps: int, *settings: str
) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the exit code, what each rank has written at its end, and the journal."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "supervisor.cli.main", "run", "--quiet"]
        line += ["--run-dir", f"{folder}/run", "--nproc-per-node", str(ranks)]
        for setting in ("report.enabled=false", "restart.backoff_s=0.05", *settings):
            line += ["--set", setting]
        line += [str(TRAINER), mode, str(steps), folder]
        try:
            ended = subprocess.run(
                line, capture_output=True, timeout=TIMEOUT_S, env=_environment(), check=False
            )
            code = ended.returncode
        except subprocess.TimeoutExpired:
            code = -1
        journal = Path(folder, "run", "events.jsonl")
        lines = journal.read_text().splitlines() if journal.exists() else []
        return code, _ends(Path(folder), ranks), [json.loads(text) for text in lines]


def strike(draw: random.Random, expected: dict[tuple[str, int], str]) -> dict[str, Any]:
    """Kills one rank of one run; returns what was said and what is true."""
    mode, ranks = draw.choice(MODES), draw.choice((2, 3))
    if (mode, ranks) not in expected:
        expected[mode, ranks] = run_torchrun(mode, ranks, STEPS)[0]["digest"]
    fault = {
        "kind": "sigkill",
        "rank": draw.randrange(ranks),
        "step": draw.randrange(3, STEPS - 2),
        "moment": draw.choice(MOMENTS),
    }
    faults = ", ".join(f"{key}: {value}" for key, value in fault.items())
    code, ends, events = run_supervised(
        mode, ranks, STEPS, "checkpoint.every_steps=9", f"faults=[{{{faults}}}]"
    )
    said = {event["exactness"] for event in events if event["kind"] == "resumed"}
    digests = {end["digest"] for end in ends}
    return {
        "mode": mode,
        "ranks": ranks,
        **fault,
        "code": code,
        "attempts": sum(event["kind"] == "attempt_started" for event in events),
        "said": sorted(said) or ["from the start"],
        "equal": len(ends) == ranks and digests == {expected[mode, ranks]},
    }


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
    board = RankBoard(Path(path), rank, 2)
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
    draw, expected = random.Random(options.seed), dict[tuple[str, int], str]()
    strikes = result["kills"] = []
    for _ in range(options.kills):
        strikes.append(strike(draw, expected))
        print(strikes[-1], flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1))
    if strikes:
        exact = sum(one["equal"] and one["said"] == ["exact"] for one in strikes)
        anew = sum(one["equal"] and one["said"] == ["from the start"] for one in strikes)
        false = sum(not one["equal"] and one["said"] == ["exact"] for one in strikes)
        lost = sum(one["code"] != 0 for one in strikes)
        print(
            f"{len(strikes)} kills: {exact} exact and true, {anew} from the start and equal, "
            f"{false} false exact, {lost} lost"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
