"""The files that a script writes itself are those of plain python when its loop was replayed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from tests.scenarios.loop_styles import ENDING, PRELUDE, script
from tests.scenarios.runs import supervised, train_plainly

LOOP = """
import bz2, os, pickle, shutil, tarfile
import numpy as np
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2); best = 1e9
shutil.rmtree("cleared", ignore_errors=True); os.makedirs("cleared")
log = open("log.bin", "wb")
for step in range(24):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    log.write(b"%d %.9f;" % (step, loss.item()))
    if step % 4 == 3:
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        big = torch.cat([v.flatten() for v in weights.values()]).repeat(400)
        np.save(f"weights_{step}.npy", big.numpy()); np.save("newest.npy", big.numpy())
        with open("file.pkl", "wb") as f: pickle.dump(big.numpy(), f)
        torch.save(big, "last.pt"); torch.save(big, f"cleared/{step}.pt")
        torch.save(big, "u.tmp")
        if os.path.exists("linked.pt"): os.unlink("linked.pt")
        os.link("u.tmp", "linked.pt"); os.remove("u.tmp")
        torch.save(big, "t.tmp"); os.replace("t.tmp", "atomic.pt")
        if step == 7: shutil.copyfile("newest.npy", "best.npy")
        with bz2.open("bz2.bin", "wb") as f: f.write(big.numpy().tobytes())
        with open("newest.npy", "rb") as f, tarfile.open("tar.bin", "w") as tar:
            part = tarfile.TarInfo("newest.npy"); part.size = os.path.getsize("newest.npy")
            tar.addfile(part, f)
        if step > 3: os.replace("turn.npy", "turned.npy")
        with open("turn.npy", "wb") as f: np.save(f, big.numpy())
log.close()
result = model.state_dict()
"""


def test_all_files_are_those_of_plain_python(tmp_path: Path) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"{prelude}{LOOP}torch.save(result, sys.argv[-1])\n"

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=("checkpoint.every_steps=6", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 21}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert _files(ended.folder) == _files(expected.folder)


KILLS = """
import os, signal
starts = int(open("starts").read()) if os.path.exists("starts") else 0
with open("starts", "w") as f: f.write(str(starts + 1))
kill_at = {0: 21, 1: 13, 2: 10}.get(starts)  # the second and third within the replay
"""


def test_a_kill_within_the_replay_and_another_one_lose_no_file(tmp_path: Path) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    loop = LOOP.replace(
        "    i = torch",
        "    if step == kill_at: os.kill(os.getpid(), signal.SIGKILL)\n    i = torch",
    )
    loop = loop.replace(
        "if step == 7:", "if step == 11: os.remove('weights_7.npy')\n        if step == 7:"
    )
    text = f"{prelude}{loop}torch.save(result, sys.argv[-1])\n"

    expected = train_plainly(tmp_path / "plain", f"kill_at = None\n{text}")
    ended = supervised(
        tmp_path / "killed",
        KILLS + text,
        settings=("checkpoint.every_steps=6", "checkpoint.background=false"),
    )

    assert (expected.returncode, ended.returncode) == (0, 0), ended.stderr
    assert (ended.folder / "starts").read_text() == "4"
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert _files(ended.folder) == _files(expected.folder)
    hidden = {path.name for path in ended.folder.rglob(".*") if path.is_file()}
    # The library of this test's runs, and what replaces a run.json that is damaged.
    assert hidden <= {".cases.sqlite", ".run.json.copy"}


def _files(folder: Path) -> dict[str, int]:
    found = [*folder.iterdir(), *(folder / "cleared").iterdir()]
    wanted = (".npy", ".pkl", ".bin", ".pt")
    return {p.name: hash(p.read_bytes()) for p in found if p.suffix in wanted}


IN_FORWARD = """
import csv, json
import numpy as np
class Told(nn.Module):
    def __init__(self): super().__init__(); self.body, self.calls = make_model(0.0), 0
    def forward(self, x):
        out = self.body(x); self.calls += 1
        if self.calls % 5 == 0:
            with open("told.csv", "a", newline="") as file:
                csv.writer(file).writerow([self.calls, out.mean().item()])
            with open("last.json", "w") as file: json.dump({"max": out.max().item()}, file)
            np.save("out.npy", out.detach().numpy())
        return out
model = Told(); optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(24):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
"""
LOGGED = """
import logging
log = logging.getLogger("told"); log.propagate = False; log.setLevel(logging.INFO)
log.addHandler(logging.FileHandler("all.log"))
class Told(nn.Module):
    def __init__(self): super().__init__(); self.body, self.calls = make_model(0.0), 0
    def forward(self, x):
        out = self.body(x); self.calls += 1
        log.warning("call %d %.5f", self.calls, out.mean().item())
        return out
model = Told(); optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(24):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    log.info("step %d", step)
result = model.state_dict()
"""
DATABASE = """
import sqlite3
rows = sqlite3.connect("rows.db")
rows.execute("create table if not exists rows (step int, loss real)"); rows.commit()
model = make_model(0.0); optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(24):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    rows.execute("insert into rows values (?, ?)", (step, loss.item())); rows.commit()
result = model.state_dict()
"""
KILLED = ("checkpoint.every_steps=3", "checkpoint.background=false")


REPLACED = """
import json, os
os.makedirs("out"); model = make_model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def write(state):
    with open("out/new.json", "w") as file: json.dump(state, file)
    os.replace("out/new.json", "out/state.json")
with open("out/state.json", "w") as file: json.dump({"best": 9.0, "told": []}, file)
for step in range(24):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    with open("out/state.json") as file: state = json.load(file)
    if loss.item() < state["best"]:
        state["best"] = loss.item(); state["told"].append([step, model[0].bias.tolist()])
    write(state); optimizer.param_groups[0]["lr"] = 0.1 * state["best"]
result = model.state_dict()
"""


def test_a_state_that_the_script_reads_and_replaces_is_that_of_plain_python(tmp_path: Path) -> None:
    text = f"{PRELUDE}{REPLACED}{ENDING}"

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=KILLED,
        faults="[{kind: sigkill, step: 10}, {kind: sigkill, step: 20}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), expected.stderr + ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact", "exact"]
    for name in ("out/state.json", "out.pt"):
        assert (ended.folder / name).read_bytes() == (expected.folder / name).read_bytes(), name


def test_what_a_forward_writes_is_that_of_plain_python(tmp_path: Path) -> None:
    text = f"{PRELUDE}{IN_FORWARD}{ENDING}"

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed", text, settings=KILLED, faults="[{kind: sigkill, step: 17}]"
    )

    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    for name in ("told.csv", "last.json", "out.npy"):
        assert (ended.folder / name).read_bytes() == (expected.folder / name).read_bytes(), name


def test_a_log_that_a_forward_appends_to_is_that_of_plain_python(tmp_path: Path) -> None:
    text = f"{PRELUDE}{LOGGED}{ENDING}"

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed", text, settings=KILLED, faults="[{kind: sigkill, step: 17}]"
    )

    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert (ended.folder / "all.log").read_text() == (expected.folder / "all.log").read_text()


def test_a_database_that_nothing_else_tells_of_is_that_of_plain_python(tmp_path: Path) -> None:
    text = f"{PRELUDE}{DATABASE}{ENDING}"

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed", text, settings=KILLED, faults="[{kind: sigkill, step: 17}]"
    )

    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    rows, of_plain = (_rows(folder / "rows.db") for folder in (ended.folder, expected.folder))
    assert len(rows) == 24
    assert rows == of_plain


def _rows(path: Path) -> list[tuple[int, float]]:
    with contextlib.closing(sqlite3.connect(path)) as data:
        assert data.execute("pragma integrity_check").fetchall() == [("ok",)]
        return data.execute("select * from rows order by rowid").fetchall()


BLOBS = """
import io, sqlite3
os.makedirs("out"); data = sqlite3.connect("out/runs.db")
data.execute("create table saved (step integer, weights blob)")
model = make_model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 5 == 4:
        stream = io.BytesIO(); torch.save(model.state_dict(), stream)
        data.execute("insert into saved values (?, ?)", (step, stream.getvalue())); data.commit()
result = {"model": model.state_dict()}
"""


def test_weights_within_a_database_are_not_called_exact(tmp_path: Path) -> None:
    text = PRELUDE + "import os" + BLOBS + ENDING
    settings = ("checkpoint.every_steps=8", "checkpoint.background=false")

    ended = supervised(tmp_path, text, settings=settings, faults="[{kind: sigkill, step: 20}]")

    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "out/runs.db" in resumed["reason"]
