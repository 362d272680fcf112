"""Seeds, names and numbers that a script has from outside of its process, over two kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runs import supervised, train_plainly

SETTINGS = ("checkpoint.every_steps=6", "checkpoint.background=false", "report.enabled=false")
KILLS = "[{kind: sigkill, step: 15}, {kind: sigkill, step: 23}]"

DRAWS = """
import datetime, json, os, random, secrets, sys, tempfile, time, uuid, zlib
import numpy as np
import torch

torch.set_num_threads(1)
early = int(time.time()), secrets.token_hex(4), str(datetime.datetime.now())  # names and seeds
torch.manual_seed(0)
generator, numbers, own = np.random.default_rng(), np.random.RandomState(), random.Random()


def draws():
    torch_own = torch.Generator()
    return [  # what the training depends on, and what it only shows
        int.from_bytes(os.urandom(4), "little"), secrets.randbits(40),
        random.SystemRandom().sample(range(1000), 5), generator.permutation(9).tolist(),
        int(numbers.randint(1 << 30)), own.random(), random.Random().random(),
        np.random.default_rng().integers(1 << 40).item(), torch_own.seed(),
        str(uuid.uuid4()), str(early),
    ], [
        str(uuid.uuid1()), time.time_ns(), time.perf_counter(), time.monotonic(),
        time.process_time(), time.strftime("%H:%M:%S"),
        datetime.datetime.now().isoformat(), str(datetime.date.today()),
    ]


given = json.load(open("given.json")) if os.path.exists("given.json") else None
X = torch.randn(64, 4); Y = X.sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
seen = []
for step in range(30):
    if step % 4 == 0:
        seen.append(draws() if given is None else given[len(seen)])
        print("drew", json.dumps(seen[-1]), flush=True)
    order = torch.Generator().manual_seed(zlib.crc32(json.dumps([seen[-1][0], step]).encode()))
    i = torch.randint(0, 64, (8,), generator=order)
    loss = torch.nn.functional.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
json.dump(seen, open("seen.json", "w"))
torch.save(model.state_dict(), sys.argv[-1])
"""


def test_what_was_drawn_before_the_kills_makes_the_training_afterwards(tmp_path: Path) -> None:
    ended = supervised(tmp_path / "killed", DRAWS, settings=SETTINGS, faults=KILLS)

    assert ended.returncode == 0, ended.stderr
    resumed = [(e["exactness"], e["reason"]) for e in ended.events("resumed")]
    assert [exactness for exactness, _ in resumed] == ["exact", "exact"], resumed
    seen = (ended.folder / "seen.json").read_text()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "given.json").write_text(seen)
    told = [line[5:] for line in ended.stdout.splitlines() if line.startswith("drew ")]
    assert told[:3] == [line[5:] for line in _told(train_plainly(tmp_path / "plain", DRAWS))][:3]
    plain = (tmp_path / "plain" / "out.pt").read_bytes()
    assert (ended.folder / "out.pt").read_bytes() == plain


def _told(ended: object) -> list[str]:
    return [line for line in ended.stdout.splitlines() if line.startswith("drew ")]  # type: ignore[attr-defined]


OWN = """
import glob, json, os, shelve, sqlite3, sys, time
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
os.makedirs("log", exist_ok=True)
name = f"log/{time.time_ns()}.txt"
base = sqlite3.connect("study.db")
base.execute("pragma journal_mode=wal")
base.execute("create table if not exists trial(id integer primary key, state text, at real)")
fast = sqlite3.connect("fast.db", isolation_level=None)
fast.execute("create table if not exists row(id integer primary key, loss real)")
X = torch.randn(64, 4); Y = X.sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
child, key, fd = None, None, None
for step in range(30):
    i = torch.randint(0, 64, (8,))
    loss = torch.nn.functional.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    with open(name, "ab") as log: log.write(b"%d\\n" % step)
    fast.execute("begin")
    fast.execute("insert into row(loss) values(?)", (loss.item(),))
    if step % 5 == 0:
        if key is not None:
            (state,) = base.execute("select state from trial where id = ?", (key,)).fetchone()
            assert state == "running", state
            base.execute("update trial set state = 'done' where id = ?", (key,)); base.commit()
        key = base.execute("insert into trial(state, at) values('running', 0)").lastrowid
        base.commit()
        if child is not None: os.waitpid(child, 0)
        if fd is not None: os.close(fd)
        fd = os.open(f"epoch{step}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        child = os.fork()
        if child == 0:
            os._exit(0)
    os.write(fd, f"{step} {loss.item():.6f}\\n".encode())
    fast.execute("commit")
os.waitpid(child, 0)
rows = base.execute("select id, state from trial order by id").fetchall()
losses = fast.execute("select * from row order by id").fetchall()
checks = [one.execute("pragma integrity_check").fetchall() for one in (base, fast)]
logs = {os.path.basename(n) if "log/" not in n else "log": open(n).read()
        for n in sorted(glob.glob("epoch*.log") + glob.glob("log/*"))}
json.dump([rows, losses, checks, logs, len(os.listdir("log"))], open("end.json", "w"))
torch.save(model.state_dict(), sys.argv[-1])
"""


def test_databases_descriptors_children_and_names_are_those_of_plain_python(
    tmp_path: Path,
) -> None:
    expected = train_plainly(tmp_path / "plain", OWN)
    ended = supervised(tmp_path / "killed", OWN, settings=SETTINGS, faults=KILLS)

    assert (expected.returncode, ended.returncode) == (0, 0), ended.stderr
    resumed = [(e["exactness"], e["reason"]) for e in ended.events("resumed")]
    assert [exactness for exactness, _ in resumed] == ["exact", "exact"], resumed
    for name in ("end.json", "out.pt"):
        mine, plain = ((one.folder / name).read_bytes() for one in (ended, expected))
        assert mine == plain, name


WORKERS = """
import os, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)


class Noisy(Dataset):
    def __len__(self): return 128
    def __getitem__(self, i): return torch.full((4,), float(os.urandom(1)[0] % 8))


if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x in DataLoader(Noisy(), batch_size=8, num_workers=1, multiprocessing_context="fork"):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    torch.save(model.state_dict(), sys.argv[-1])
"""


@pytest.mark.parametrize("way", ["fork", "forkserver"])
def test_what_a_worker_of_a_loader_draws_makes_a_resume_approximate(
    way: str, tmp_path: Path
) -> None:
    script = WORKERS.replace("fork", way)
    ended = supervised(tmp_path, script, settings=SETTINGS, faults="[{kind: sigkill, step: 15}]")

    assert ended.returncode == 0, ended.stderr
    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "script.py:13 draws from os.urandom in another process" in resumed["reason"]
