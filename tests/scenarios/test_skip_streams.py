"""Samples of iterable-style data sets that a fast-forward leaves out, and those it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import Ended, differences, plain, supervised

SETTINGS = ("checkpoint.every_steps=4", "checkpoint.background=false")
FAULTS = "[{kind: sigkill, step: 30}, {kind: sigkill, step: 42}]"

DATA = """
import time
from torch.utils.data import IterableDataset
class Pure(IterableDataset):
    def __init__(self): self.epoch = 0
    def __iter__(self):
        self.epoch += 1
        order = np.random.default_rng(self.epoch).permutation(90)
        for k, i in enumerate(order):
            time.sleep(0.0005)
            x = X[i] + 0.1 * torch.randn(8) + random.gauss(0, 0.1) + float(np.random.rand())
            if k % 13: yield x, Y[i]
class Carrying(Pure):
    def __iter__(self):
        seen = 0
        for x, y in super().__iter__():
            seen += 1; yield x + 0.01 * seen, y
class Buffered(Pure):
    def __iter__(self):
        waiting = []
        for sample in super().__iter__():
            waiting.append(sample)
            if len(waiting) > 9: yield waiting.pop(0)
        yield from waiting
class Own(Pure):
    def __iter__(self):
        self.place = 0; return self
    def __next__(self):
        if self.place == 83: raise StopIteration
        self.place += 1; time.sleep(0.0005); return X[self.place], Y[self.place]
class Remembering(Pure):
    def __init__(self): self.rows = [[i, 0] for i in range(90)]
    def __iter__(self):
        for row in self.rows:
            time.sleep(0.0005); row[1] += 1; yield X[row[0]] * row[1], Y[row[0]]
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


def _killed(folder: Path, text: str) -> Ended:
    expected = plain(folder / "plain", text)
    killed = supervised(folder / "killed", text, settings=SETTINGS, faults=FAULTS)
    assert differences(expected.result(), killed.result()) == []
    resumed = killed.events("resumed")
    assert [e["exactness"] for e in resumed] == ["exact", "exact"], resumed
    assert [e["from_step"] for e in resumed] == [28, 40]
    assert killed.found("loading needed") == []
    return killed


LEFT_EARLY = """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
seen, other, late = [], DataLoader(Pure(), 4), iter(DataLoader(Pure(), 4))
for epoch in range(8):
    for k, ((x, y), (u, v)) in enumerate(zip(loader, other)):
        if k == 7: break
        if epoch < 2 or (epoch == 7 and k < 3): u, v = next(late)
        loss = F.mse_loss(model(torch.cat([x, u])), torch.cat([y, v]))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        seen.append(loss.item())
result = {"model": model.state_dict(), "seen": seen, "x": x}
"""


def test_generators_that_are_left_early_or_used_again_late_make_all_again(tmp_path: Path) -> None:
    text = PRELUDE + DATA + "loader = DataLoader(Pure(), 8)" + LEFT_EARLY + ENDING

    killed = _killed(tmp_path, text)

    assert [event["batches_left_out"] for event in killed.events("resumed")] == [0, 0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Carrying", "Buffered", "Own", "Remembering"])
def test_a_generator_that_keeps_something_makes_all_again(kind: str, tmp_path: Path) -> None:
    text = PRELUDE + DATA + f"loader = DataLoader({kind}(), 8)" + LOOP + ENDING

    killed = _killed(tmp_path, text)

    assert [event["batches_left_out"] for event in killed.events("resumed")] == [0, 0]


HUGGING_FACE = """
from datasets import IterableDataset
def rows(shards):
    for shard in shards:
        for i in range(shard * 30, shard * 30 + 30): yield {"x": X[i].tolist(), "y": Y[i].tolist()}
data = IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2]})
data = data.map(lambda row: {"x": [2 * v for v in row["x"]], "y": row["y"]}).with_format("torch")
data = data.shuffle(seed=1, buffer_size=20)
class Pairs:
    def __init__(self): self.loader = DataLoader(data, 8)
    def __iter__(self):
        for row in self.loader: yield row["x"], row["y"]
loader = Pairs()
"""


@pytest.mark.exhaustive
def test_a_shuffled_stream_of_hugging_face_makes_all_again(tmp_path: Path) -> None:
    pytest.importorskip("datasets")

    killed = _killed(tmp_path, PRELUDE + HUGGING_FACE + LOOP + ENDING)

    assert [event["batches_left_out"] for event in killed.events("resumed")] == [0, 0]


LIBRARY = '''
import time, torch
from torch.utils.data import IterableDataset

class Told(IterableDataset):
    """Tells where it stands, and begins there once more in each later epoch, if it is not told."""
    start, place = None, 0
    def state_dict(self): return {"place": self.place, "waiting": None}
    def load_state_dict(self, state): self.start = state
    def __iter__(self):
        self.place = self.start["place"] if self.start else 0
        while self.place < 83:
            time.sleep(0.0005)
            self.place += 1
            yield self.sample(self.place)
    def sample(self, place):
        x = torch.linspace(0, place % 7, 8) + 0.1 * torch.randn(8)
        return x, x.sum().reshape(1)

class Shuffled(Told):
    """What waits in its buffer is not in its state."""
    def __iter__(self):
        waiting = []
        for sample in super().__iter__():
            waiting.append(sample)
            if len(waiting) > 9: yield waiting.pop(len(waiting) // 2)
        yield from waiting
'''


def _library(folder: Path) -> None:
    """A package that was installed beside the script."""
    for run in ("plain", "killed"):
        installed = folder / run / "toystreams-1.0.dist-info"
        installed.mkdir(parents=True)
        (installed / "RECORD").write_text("toystreams.py,,\n")
        (folder / run / "toystreams.py").write_text(LIBRARY)


def test_a_librarys_stream_goes_on_from_the_state_that_it_told(tmp_path: Path) -> None:
    _library(tmp_path)
    text = PRELUDE + "import toystreams\nloader = DataLoader(toystreams.Told(), 8)"

    killed = _killed(tmp_path, text + LOOP + ENDING)

    first, second = (event["batches_left_out"] for event in killed.events("resumed"))
    assert first >= 12, first
    assert second >= 20, second


@pytest.mark.exhaustive
def test_a_stream_whose_state_is_not_all_makes_all_again(tmp_path: Path) -> None:
    _library(tmp_path)
    text = PRELUDE + "import toystreams\nloader = DataLoader(toystreams.Shuffled(), 8)"
    expected = plain(tmp_path / "plain", text + LOOP + ENDING)

    killed = supervised(tmp_path / "killed", text + LOOP + ENDING, settings=SETTINGS, faults=FAULTS)

    assert differences(expected.result(), killed.result()) == []
    resumed = killed.events("resumed")
    assert [e["exactness"] for e in resumed] == ["exact", "exact"], resumed
    assert [e["batches_left_out"] for e in resumed] == [0, 0]
    assert killed.found("loading needed")
