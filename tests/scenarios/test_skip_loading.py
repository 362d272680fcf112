"""A fast-forward that leaves the loading out ends with the same weights to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

NOTE = """
import ctypes, os
def note_load():  # in C, for a file that is named by the process goes on in the next one
    libc, path = ctypes.CDLL(None), f"../loads/{os.getpid()}".encode()
    number = libc.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    libc.write(number, b".", 1); libc.close(number)
"""
LOOP = """
import os
class Slow(Dataset):
    def __len__(self): return 90
    def __getitem__(self, i):
        note_load()
        return X[i] + 0.1 * torch.randn(8) + random.random() + float(np.random.rand()), Y[i]
model = make_model(0.0); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Slow(), batch_size=8, shuffle=True)
best = float("inf")
for epoch in range(4):
    for x, y in loader:
        x = x / x.abs().mean().item()
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
        best = min(best, loss.item())
        if epoch == 2 and len(x) == 8:
            with torch.inference_mode(): best = min(best, model(x).square().mean().item())
result = {"model": model.state_dict(), "best": best, "x": x}
"""
SETTINGS = (
    "checkpoint.every_steps=4",
    "checkpoint.background=false",
    "fast_forward.skip_loading=true",
)


def test_skipped_batches_change_nothing_though_loading_draws(tmp_path: Path) -> None:
    text = PRELUDE + NOTE + LOOP + ENDING
    (tmp_path / "loads").mkdir()
    expected = train_plainly(tmp_path / "plain", text)
    for path in (tmp_path / "loads").iterdir():
        path.unlink()

    killed = supervised(
        tmp_path / "killed",
        text,
        settings=SETTINGS,
        faults="[{kind: sigkill, step: 30}, {kind: sigkill, step: 37}]",
    )

    assert [e["exactness"] for e in killed.events("resumed")] == ["exact", "exact"], killed.stderr
    assert [e["from_step"] for e in killed.events("resumed")] == [28, 36]
    assert len(killed.found("recorded loss")) == 2
    assert killed.events("warning") == []
    assert differences(expected.result(), killed.result()) == []
    loads = [path.stat().st_size for path in (tmp_path / "loads").iterdir()]
    first_attempt, loaded_again = 31 * 8, (48 - 28) * 8
    assert max(loads) <= first_attempt
    assert min(loads) < loaded_again + 9 * 8


WORKERS = """
import os
class Slow(Dataset):
    def __init__(self): self.process = os.getpid()  # a worker whose process was killed loads on
    def __len__(self): return 40
    def __getitem__(self, i):
        with open(f"loads_{self.process}", "ab", buffering=0) as file: file.write(b".")
        return X[i] + 0.1 * torch.randn(8), Y[i]
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Slow(), batch_size=8, shuffle=True, num_workers=1)
for epoch in range(5):
    for x, y in loader:
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
"""


def test_on_a_promise_workers_load_only_what_is_needed(tmp_path: Path) -> None:
    text = PRELUDE + WORKERS + ENDING
    expected = train_plainly(tmp_path / "plain", text)

    killed = supervised(
        tmp_path / "killed", text, settings=SETTINGS, faults="[{kind: sigkill, step: 21}]"
    )

    (resumed,) = killed.events("resumed")
    assert (resumed["exactness"], resumed["from_step"]) == ("exact", 20), resumed
    assert len(killed.found("recorded loss")) == 1
    assert differences(expected.result(), killed.result()) == []
    loads = sorted(path.stat().st_size for path in killed.folder.glob("loads_*"))
    # The first batch, which shows the shapes, and those from 8 steps before the target on.
    assert loads[0] == 8 + (25 - (20 - 8)) * 8


FOUR_LOADERS = """
import time
class Slow(Dataset):
    def __init__(self, seed):
        self.data = torch.randn(96, 8, generator=torch.Generator().manual_seed(seed))
    def __len__(self): return 96
    def __getitem__(self, i): time.sleep(0.0005); return self.data[i], self.data[i].sum()[None]
class OwnGenerator(Slow):
    def __init__(self, seed): super().__init__(seed); self.own = np.random.default_rng(seed)
    def __getitem__(self, i): x, y = super().__getitem__(i); return x + self.own.random(), y
class Counting(Slow):
    def __init__(self, seed): super().__init__(seed); self.seen = {}
    def __getitem__(self, i): self.seen[i] = self.seen.get(i, 0) + 1; return super().__getitem__(i)
class Logging(Slow):
    def __getitem__(self, i):
        with open("log.txt", "a") as file: file.write(f"{i}\\n")
        return super().__getitem__(i)
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = [Slow(1), OwnGenerator(2), Counting(3), Logging(4)]
epochs = [DataLoader(d, batch_size=4, shuffle=True) for d in data]
total = torch.zeros(())
for epoch in range(2):
    for four in zip(*epochs):
        x = torch.cat([x for x, _ in four]); y = torch.cat([y for _, y in four])
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
        total += y.mean()
result = {"model": model.state_dict(), "seen": data[2].seen, "total": total,
          "log": open("log.txt").read()}
"""
BY_ITSELF = ("checkpoint.every_steps=4", "checkpoint.background=false")


@pytest.mark.exhaustive
def test_only_what_was_seen_to_change_nothing_is_left_out(tmp_path: Path) -> None:
    text = PRELUDE + FOUR_LOADERS + ENDING
    expected = train_plainly(tmp_path / "plain", text)

    killed = supervised(
        tmp_path / "killed", text, settings=BY_ITSELF, faults="[{kind: sigkill, step: 42}]"
    )

    (resumed,) = killed.events("resumed")
    assert (resumed["exactness"], resumed["from_step"]) == ("exact", 40), resumed
    # Of one loader in four, from behind the first step to 8 before the target.
    assert resumed["batches_left_out"] == 40 - 8 - 1
    assert killed.found("loading needed") == []
    assert len(killed.found("recorded loss")) == 1
    assert differences(expected.result(), killed.result()) == []


LOOKS = """
import time
class Slow(Dataset):
    def __len__(self): return 96
    def __getitem__(self, i): time.sleep(0.0005); return X[i], Y[i]
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
positive = 0
for epoch in range(2):
    for x, y in DataLoader(Slow(), batch_size=4, shuffle=True):
        if len(x[x > 1.0]) > 6: positive += 1
        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = {"model": model.state_dict(), "positive": positive}
"""


@pytest.mark.exhaustive
def test_a_loop_that_takes_a_length_from_its_batch_gets_all_batches(tmp_path: Path) -> None:
    text = PRELUDE + LOOKS + ENDING
    expected = train_plainly(tmp_path / "plain", text)

    killed = supervised(
        tmp_path / "killed", text, settings=BY_ITSELF, faults="[{kind: sigkill, step: 30}]"
    )

    (needed,) = killed.found("loading needed")
    assert "takes a shape from values" in needed["message"]
    (resumed,) = killed.events("resumed")
    assert (resumed["exactness"], resumed["batches_left_out"]) == ("exact", 0), resumed
    assert len(killed.events("restart")) == 2  # the kill, and to load all
    assert differences(expected.result(), killed.result()) == []
    assert expected.result()["positive"] > 0
