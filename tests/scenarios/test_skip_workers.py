"""Batches of loader workers that a fast-forward leaves out, and those that it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import Ended, differences, supervised, train_plainly

SETTINGS = ("checkpoint.every_steps=4", "checkpoint.background=false")

DATA = """
import os, time
loads = os.environ.get("LOADS")
class Pure(Dataset):
    def __len__(self): return 90
    def __getitem__(self, i):
        time.sleep(0.0005)
        x = X[i] + 0.1 * torch.randn(8) + random.gauss(0, 0.1) + float(np.random.rand())
        return x, Y[i]
def init(worker): np.random.seed(torch.initial_seed() % 2**31 + worker)
"""
LOOP = """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
seen = []
for epoch in range(4):
    for x, y in loader:
        x = x + torch.randn(1)
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
        seen.append(loss.item())
result = {"model": model.state_dict(), "seen": seen, "x": x}
"""
LOADERS = {
    "two workers": "loader = DataLoader(Pure(), 8, shuffle=True, num_workers=2)",
    "persistent workers": """
loader = DataLoader(Pure(), 8, shuffle=True, num_workers=2, persistent_workers=True,
                    worker_init_fn=init, prefetch_factor=3)""",
    "a weighted sampler and a collate function": """
from torch.utils.data import BatchSampler, WeightedRandomSampler
def collate(samples):
    x, y = zip(*samples); x = torch.stack(x)
    return {"x": x * torch.empty(len(x), 1).uniform_(0.9, 1.1), "y": torch.stack(y)}
inner = DataLoader(Pure(), num_workers=2, collate_fn=collate, batch_sampler=BatchSampler(
    WeightedRandomSampler(torch.rand(90), 90), 8, drop_last=False))
class Pairs:
    def __iter__(self):
        for batch in inner: yield batch["x"], batch["y"]
loader = Pairs()""",
    "two loaders in turn": """
first = DataLoader(Pure(), 8, shuffle=True, num_workers=1, persistent_workers=True)
second = DataLoader(Pure(), 8, shuffle=True, num_workers=2)
class Both:
    def __iter__(self):
        for (x, y), (v, w) in zip(first, second): yield x + v.mean(), y + w
loader = Both()""",
}


def _killed(folder: Path, text: str, faults: str, *settings: str) -> Ended:
    expected = train_plainly(folder / "plain", text)
    killed = supervised(folder / "killed", text, settings=(*SETTINGS, *settings), faults=faults)
    assert differences(expected.result(), killed.result()) == []
    return killed


FEW = ("persistent workers",)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k in FEW else pytest.mark.exhaustive) for k in LOADERS],
)
def test_what_workers_have_loaded_is_left_out(kind: str, tmp_path: Path) -> None:
    text = PRELUDE + DATA + LOADERS[kind] + LOOP + ENDING

    killed = _killed(tmp_path, text, "[{kind: sigkill, step: 30}, {kind: sigkill, step: 42}]")

    resumed = killed.events("resumed")
    assert [e["exactness"] for e in resumed] == ["exact", "exact"], resumed
    assert [e["from_step"] for e in resumed] == [28, 40]
    assert killed.found("loading needed") == []
    assert len(killed.found("recorded loss")) == 2
    assert resumed[0]["batches_left_out"] >= 12, resumed
    assert resumed[1]["batches_left_out"] >= 24, resumed


IMPURE = """
class Counting(Pure):
    def __init__(self): self.seen = 0
    def __getitem__(self, i): self.seen += 1; x, y = super().__getitem__(i); return x + self.seen, y
class Caching(Pure):
    def __init__(self): self.cache = {}
    def __getitem__(self, i):
        if i not in self.cache: self.cache[i] = super().__getitem__(i)
        return self.cache[i]
COUNT = [0]
class Global(Pure):
    def __getitem__(self, i):
        COUNT[0] += 1; x, y = super().__getitem__(i); return x + 0.1 * COUNT[0], y
class Writing(Pure):
    def __getitem__(self, i):
        descriptor = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"x"); os.close(descriptor)
        return super().__getitem__(i)
class Shared(Pure):
    def __init__(self): self.count = torch.zeros(1).share_memory_()
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        if i == 3: self.count += 1
        return x, y
loaders = [
    DataLoader(kind(), 8, shuffle=True, num_workers=1, persistent_workers=kind is not Caching)
    for kind in (Pure, Counting, Caching, Global, Writing, Shared)
]
class All:
    def __iter__(self):
        for found in zip(*loaders):
            yield torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])
loader = All()
"""


def test_only_workers_that_change_nothing_are_spared(tmp_path: Path) -> None:
    text = PRELUDE + DATA + IMPURE + LOOP + ENDING

    killed = _killed(tmp_path, text, "[{kind: sigkill, step: 30}]")

    (resumed,) = killed.events("resumed")
    assert (resumed["exactness"], resumed["from_step"]) == ("exact", 28), resumed
    assert killed.found("loading needed") == []
    assert 12 <= resumed["batches_left_out"] <= 28  # of one loader in six


@pytest.mark.exhaustive
def test_where_workers_are_spawned_everything_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "data.py").write_text(
        "import time, torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 90\n"
        "    def __getitem__(self, i): time.sleep(0.0005); return torch.full((8,), i / 90), "
        "torch.zeros(1)\n"
    )
    text = (
        PRELUDE
        + """
from data import Data
if __name__ == "__main__":
    torch.set_num_threads(1); model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(Data(), 8, shuffle=True, num_workers=1, persistent_workers=True,
                        multiprocessing_context="spawn")
    for epoch in range(2):
        for x, y in loader:
            loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
    torch.save({"model": model.state_dict(), "x": x}, sys.argv[-1])
"""
    )
    killed = supervised(folder, text, settings=SETTINGS, faults="[{kind: sigkill, step: 18}]")

    (resumed,) = killed.events("resumed")
    assert (resumed["exactness"], resumed["batches_left_out"]) == ("exact", 0), resumed
    assert killed.returncode == 0
