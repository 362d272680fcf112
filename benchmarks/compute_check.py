"""A machine that calculates wrongly: is it found when operators are calculated twice?

    python -m benchmarks.compute_check [--flips 640] [--healthy-steps 2000] [--json FILE]

Each flip strikes one of the five small trainings of `benchmarks.corruption`, in FP32 or BF16: at a
random operator of a random step's forward or backward, one bit of one element of its result is
flipped, once, every bit position in turn. Each operator is calculated twice (`compute_check`, at
every step). Found: it is called wrong. Healed: the weights after the step are those of the
undisturbed training, to the bit. What is not found is compared with rounding: flips of low bits,
and of elements that are small beside the largest, move a result by less than a sum in another order
does.

The other side: steps of undisturbed trainings. Whatever is called wrong is a false alarm, and
whatever differs from the training without the check is harm. Last, what a step costs that is
calculated twice, beside the same step calculated once, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.flipped_models import MODELS, OPTIMIZERS, Training, build
from supervisor.worker.compute_check.doubled_operators import DoubledOperators
from supervisor.worker.core.operator_form import form_of, inputs_of, tensors_in

BATCH = 32
STEPS = 8
DTYPES = {
    "float32": (torch.float32, torch.int32, 32),
    "bfloat16": (torch.bfloat16, torch.int16, 16),
}
PAIRS = 30


class FlippingMachine(TorchDispatchMode):
    """Flips one bit of the `at`-th result that holds numbers of the training's type."""

    def __init__(self, dtype: str, at: int, bit: int, chance: random.Random) -> None:
        super().__init__()
        self.seen = 0
        self.struck: str | None = None
        self._dtype, self._integer, _ = DTYPES[dtype]
        self._at, self._bit, self._chance = at, bit, chance

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        form = form_of(operator) if self.struck is None else None
        if form is not None and inputs_of(form, args, kwargs or {}) is not None:
            for tensor in tensors_in(result):
                if tensor.dtype is self._dtype and tensor.numel() and tensor.is_contiguous():
                    self.seen += 1
                    if self.seen > self._at:
                        self._strike(str(operator), tensor)
                        break
        return result

    def _strike(self, operator: str, tensor: torch.Tensor) -> None:
        self.struck = operator
        place = self._chance.randrange(tensor.numel())
        mask = torch.tensor(1, dtype=self._integer) << self._bit
        with torch._C._AutoDispatchBelowAutograd():
            tensor.detach().view(self._integer).view(-1)[place] ^= mask


@dataclass
class Ended:
    """A few steps of a training, and what was found in them."""

    weights: list[torch.Tensor]
    operators: DoubledOperators | None
    struck: str | None = None


def step(
    training: Training,
    at: int,
    operators: DoubledOperators | None,
    machine: FlippingMachine | None = None,
) -> None:
    rows = slice(at * BATCH, (at + 1) * BATCH)
    batch = tuple(part[rows] for part in training.data)
    training.optimizer.zero_grad()
    with machine or contextlib.nullcontext():
        with operators or contextlib.nullcontext():
            loss = training.loss(training.model, batch)
        with operators or contextlib.nullcontext():
            loss.backward()
    training.optimizer.step()


def train(
    what: tuple[str, str, str],
    steps: int,
    *,
    seed: int = 0,
    doubled: bool = False,
    machine: FlippingMachine | None = None,
    struck_at: int = -1,
) -> Ended:
    model, optimizer, dtype = what
    training = build(model, optimizer, DTYPES[dtype][0], seed)
    torch.manual_seed(seed)
    operators = DoubledOperators() if doubled else None
    batches = len(training.data[0]) // BATCH
    for at in range(steps):
        step(training, at % batches, operators, machine if at == struck_at else None)
    weights = [value.detach().clone() for value in training.model.state_dict().values()]
    return Ended(weights, operators, None if machine is None else machine.struck)


def same(one: Ended, other: Ended) -> bool:
    return all(map(torch.equal, one.weights, other.weights))


def flips(count: int) -> list[dict[str, Any]]:
    chance = random.Random(7)
    kinds = list(itertools.product(MODELS, OPTIMIZERS))
    undisturbed: dict[Any, Ended] = {}
    rows = []
    for number in range(count):
        dtype = list(DTYPES)[number % 2]
        bit = number // 2 % DTYPES[dtype][2]
        what = (*kinds[chance.randrange(len(kinds))], dtype)
        if what not in undisturbed:
            undisturbed[what] = train(what, STEPS)
        machine = FlippingMachine(dtype, chance.randrange(40), bit, chance)
        struck_at = chance.randrange(STEPS)
        ended = train(what, STEPS, doubled=True, machine=machine, struck_at=struck_at)
        operators = ended.operators
        assert operators is not None
        rows.append(
            {
                "what": what,
                "bit": bit,
                "operator": ended.struck,
                "found": bool(operators.odd),
                "rounded": operators.counts.rounded,
                "healed": same(ended, undisturbed[what]),
                "error": repr(operators.error) if operators.error else None,
            }
        )
    return rows


def healthy(steps: int) -> dict[str, Any]:
    kinds = list(itertools.product(MODELS, OPTIMIZERS, DTYPES))
    each = max(1, steps // len(kinds))
    found: dict[str, Any] = defaultdict(int)
    for what in kinds:
        plain, doubled = train(what, each, seed=1), train(what, each, seed=1, doubled=True)
        operators = doubled.operators
        assert operators is not None
        found["steps"] += each
        found["operators"] += operators.counts.calls
        found["called wrong"] += len(operators.odd)
        found["differed within rounding"] += operators.counts.rounded
        found["never the same twice"] += operators.counts.varying
        found["errors"] += operators.error is not None
        found["trainings changed"] += not same(plain, doubled)
    return dict(found)


def price() -> dict[str, float]:
    """Ratios of a step that is calculated twice to one that is not."""
    found = {}
    for model in MODELS:
        training = build(model, "AdamW", torch.float32, 0)
        operators = DoubledOperators()
        ratios = []
        for at in range(PAIRS):
            took = []
            for mode in (None, operators):
                started = time.perf_counter()
                step(training, at % 16, mode)
                took.append(time.perf_counter() - started)
            ratios.append(took[1] / took[0])
        found[model] = statistics.median(ratios)
    return found


def tell(rows: list[dict[str, Any]]) -> None:
    struck = [row for row in rows if row["operator"]]
    print(f"\n{len(struck)} flips that struck\n")
    print("| type | bits | flips | found | healed | within rounding |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for dtype, (_, _, bits) in DTYPES.items():
        mantissa = 23 if bits == 32 else 7
        parts = {
            "sign and exponent": range(mantissa, bits),
            "upper half of the mantissa": range(mantissa // 2, mantissa),
            "lower half of the mantissa": range(mantissa // 2),
        }
        for name, part in parts.items():
            some = [row for row in struck if row["what"][2] == dtype and row["bit"] in part]
            counts = [
                sum(bool(row[what]) for row in some) for what in ("found", "healed", "rounded")
            ]
            print(f"| {dtype} | {name} | {len(some)} | " + " | ".join(map(str, counts)) + " |")
    bad = [row for row in rows if row["error"]]
    print(f"\nerrors of ours: {len(bad)}", *(row["error"] for row in bad[:3]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=640)
    parser.add_argument("--healthy-steps", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = flips(given.flips)
    tell(rows)
    calm, ratios = healthy(given.healthy_steps), price()
    print("\nundisturbed:", ", ".join(f"{name} {value}" for name, value in calm.items()))
    print("price of a step:", ", ".join(f"{name} x{value:.1f}" for name, value in ratios.items()))
    if given.json is not None:
        given.json.write_text(json.dumps({"flips": rows, "healthy": calm, "price": ratios}))


if __name__ == "__main__":
    main()
