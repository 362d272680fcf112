"""A flipped bit in memory is named, and healed without losing a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.scenarios.runs import Ended, supervised, train_plainly

TRANSFORMER = """
import ctypes, struct, sys, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, LENGTH, SIZE = 40, 16, 32
RARE = WORDS - 1
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(SIZE)
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.block = Block()
        self.head = nn.Linear(SIZE, WORDS)
    def forward(self, x):
        return self.head(self.block(self.words(x)))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(1)
def write(tensor, place, value):
    # As broken memory does: nobody counts it.
    ctypes.memmove(tensor.data_ptr() + 4 * place, struct.pack("<f", value), 4)
for step in range(90):
    x = torch.randint(0, RARE, (8, LENGTH), generator=gen)
    if step % 7 == 0:
        x[0, 3] = RARE
    words, wanted = x[:, :-1], x[:, :-1] * 3 % WORDS
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), wanted.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    HARM
torch.save({"loss": loss.detach()}, sys.argv[-1])
"""

WRITE = "if step == 40: write({}, {}, {})"
HARM = WRITE.format("model.block.qkv.weight", 777, 1e6)


def train(folder: Path, harm: str, *, policy: str = "default") -> Ended:
    text = TRANSFORMER.replace("HARM", harm)
    settings = ("snapshot.every_steps=10",)
    return supervised(folder, text, settings=settings, options=("--policy", policy))


def test_a_corrupted_weight_is_named_and_put_back_in_place(tmp_path: Path) -> None:
    text = TRANSFORMER.replace("HARM", "")
    undisturbed = float(train_plainly(tmp_path / "plain", text).result()["loss"])

    ended = train(tmp_path / "run", HARM)

    assert ended.returncode == 0, ended.stderr
    found = ended.events("corruption_found")
    assert [event["tensor"] for event in found] == ["model_0.block.qkv.weight"]
    assert found[0]["healed"] == "in_place"
    assert found[0]["elements"] == 1
    assert found[0]["from_step"] <= 41 <= found[0]["step"] <= 51
    assert "rollback" not in ended.actions()
    alerts = [e for e in ended.events("alert") if e["detector"] == "corruption"]
    assert alerts[0]["severity"] == "critical"
    assert abs(float(ended.result()["loss"]) - undisturbed) < 0.05  # of 3.7 at the start


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9 has no Muon")
def test_a_corrupted_weight_of_muon_is_put_back_in_place(tmp_path: Path) -> None:
    text = TRANSFORMER.replace(
        "optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)",
        "flat = [p for p in model.parameters() if p.ndim == 1]\n"
        "other = torch.optim.AdamW([*flat, model.words.weight], lr=2e-3)\n"
        "optimizer = torch.optim.Muon([model.block.qkv.weight, model.block.out.weight,"
        " model.head.weight], lr=1e-2)",
    ).replace(
        "    optimizer.step()\n", "    optimizer.step()\n    other.step()\n    other.zero_grad()\n"
    )
    settings = ("snapshot.every_steps=10",)
    undisturbed = float(
        train_plainly(tmp_path / "plain", text.replace("HARM", "")).result()["loss"]
    )

    ended = supervised(tmp_path / "run", text.replace("HARM", HARM), settings=settings)

    assert ended.returncode == 0, ended.stderr
    (found,) = ended.events("corruption_found")
    assert found["tensor"] == "model_0.block.qkv.weight"
    assert (found["rule"], found["healed"]) == ("moved", "in_place")
    assert found["bound"] < 1.0
    assert abs(float(ended.result()["loss"]) - undisturbed) < 0.05


def test_many_corrupted_values_are_answered_by_a_rollback(tmp_path: Path) -> None:
    harm = (
        "if step == 40: ctypes.memset(optimizer.state[model.head.weight]['exp_avg_sq']"
        ".data_ptr(), 0x11, 4 * 500)"
    )

    ended = train(tmp_path / "run", harm)

    assert ended.returncode == 0, ended.stderr
    found = next(e for e in ended.events("corruption_found") if e["rule"] == "fell")
    assert found["healed"] == "rollback"
    assert found["elements"] > 100
    (back,) = ended.events("rollback")
    assert back["to_step"] == found["from_step"]


def test_a_second_corruption_raises_doubts_about_the_machine(tmp_path: Path) -> None:
    harm = "if step in (40, 60): write(model.block.qkv.weight, 777, 1e6)"

    ended = train(tmp_path / "run", harm)

    assert len(ended.events("corruption_found")) == 2
    warned = [e for e in ended.events("warning") if e["found"] == "suspect hardware"]
    assert len(warned) == 1
    assert "suspect hardware" in ended.stderr


def test_who_only_observes_is_told_and_left_alone(tmp_path: Path) -> None:
    ended = train(tmp_path / "run", HARM, policy="observe_only")

    assert ended.returncode == 0, ended.stderr
    assert {event["healed"] for event in ended.events("corruption_found")} == {"no"}
    assert ended.actions() == []


STATISTICS = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="with this torch running statistics are not watched (docs/versions.md)",
)


@pytest.mark.parametrize(
    ("target", "rule"),
    [pytest.param("mean", "statistic", marks=STATISTICS), ("average", "average")],
)
def test_what_only_evaluation_uses_is_healed_too(tmp_path: Path, target: str, rule: str) -> None:
    flip = {"target": target, "bit": 30, "step": 65, "seed": 4}
    text = f"""
from benchmarks.flipped_training import train
train(".", model="cnn", optimizer="AdamW", dtype="float32", seed=0, steps=90, flip={flip})
"""

    ended = supervised(tmp_path, text, settings=("snapshot.every_steps=10",))

    assert ended.returncode == 0, ended.stderr
    found = ended.events("corruption_found")
    assert rule in {event["rule"] for event in found}
    assert {event["healed"] for event in found} == {"in_place"}
    losses = json.loads((tmp_path / "result.json").read_text())
    assert max(losses["loss"], losses["average_loss"]) < 2.0  # of 2.3 at the start
