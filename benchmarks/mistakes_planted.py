"""Silent mistakes planted into public scripts: told, of which kind, at the right line; and the
scripts as they are: silent.

    python -m benchmarks.mistakes_planted CHECKOUTS [--json FILE]

CHECKOUTS holds ``makemore`` and ``minGPT`` of github.com/karpathy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.mistakes_corpus import judged


@dataclass(frozen=True, slots=True)
class Planted:
    """Attributes:
    script: below the checkouts, with its arguments.
    kind: that has to be told; empty for the script as it is.
    file: that is changed, below the checkouts.
    old, new: the change.
    place: in the line that has to be told.
    """

    script: str
    kind: str = ""
    file: str = ""
    old: str = ""
    new: str = ""
    place: str = ""


_MAKEMORE, _ADDER = "makemore/makemore.py", "minGPT/projects/adder/adder.py"
_GRU = f"{_MAKEMORE} --max-steps 130 --num-workers 0 --type gru"
_MLP = _GRU.replace("gru", "mlp")
_TRANSFORMER = _GRU.replace("gru", "transformer")
_OFTEN = f"{_ADDER} --trainer.max_iters=60"
_CLEARS = "        model.zero_grad(set_to_none=True)\n"
_PASSES = "        loss.backward()\n"
PLANTED = (
    Planted(_GRU),
    Planted(_MLP),
    Planted(_TRANSFORMER),
    Planted(_OFTEN.replace("60", "130")),
    Planted(
        _GRU,
        "gradients_cleared_early",
        _MAKEMORE,
        _CLEARS + _PASSES,
        _PASSES + _CLEARS,
        "model.zero_grad(",
    ),
    Planted(_MLP, "gradients_never_cleared", _MAKEMORE, _CLEARS, "", "loss.backward()"),
    Planted(
        _TRANSFORMER,
        "trained_by_nothing",
        _MAKEMORE,
        "AdamW(model.parameters()",
        "AdamW(model.transformer.parameters()",
        "torch.optim.AdamW(",
    ),
    Planted(
        _MLP,
        "probabilities_for_logits",
        _MAKEMORE,
        "logits = self.mlp(x)",
        "logits = self.mlp(x).softmax(-1)",
        "loss = F.cross_entropy(",
    ),
    Planted(
        _GRU,
        "nothing_learned",
        _MAKEMORE,
        "lr=args.learning_rate",
        "lr=2000 * args.learning_rate",
        "loss = F.cross_entropy(",
    ),
    Planted(
        _OFTEN,
        "training_in_eval_mode",
        _ADDER,
        "            # revert model to training mode\n            model.train()\n",
        "",
        "model.eval()",
    ),
)


def run(checkouts: Path, planted: Planted) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        name, *words = planted.script.split()
        root = Path(folder) / "checkouts"
        shutil.copytree(checkouts / name.split("/")[0], root / name.split("/")[0])
        if name == _MAKEMORE:
            words += ["-i", str(root / "makemore" / "names.txt")]
        else:
            adder = root / _ADDER
            adder.write_text(adder.read_text().replace("iter_num % 500", "iter_num % 20"))
        if planted.file:
            changed = root / planted.file
            text = changed.read_text()
            assert planted.old in text, planted
            changed.write_text(text.replace(planted.old, planted.new))
        script = root / name
        sys.path[:0] = [str(script.parent), str(root / name.split("/")[0])]
        found = judged(script, words)
        del sys.path[:2]
        lines = script.read_text().splitlines()
        told = found.get("told", [])
        right = any(
            planted.place in lines[int(one.split(f"{script.name}:")[1].split(":")[0]) - 1]
            for one in told
            if planted.place and f"{script.name}:" in one
        )
    is_told = [one.split(":")[0] for one in told] == [planted.kind] * bool(planted.kind)
    return {"script": planted.script, "kind": planted.kind, **found, "as_wanted": is_told,
            "place_right": right}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for planted in PLANTED:
        rows.append(run(given.checkouts.resolve(), planted))
        print(json.dumps(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if all(row["as_wanted"] for row in rows) else 1)


if __name__ == "__main__":
    main()
