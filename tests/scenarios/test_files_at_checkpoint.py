"""After a kill and an exact resume a script's own folders hold what they would have held."""

from __future__ import annotations

import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.loop_styles import script
from tests.scenarios.runs import Ended, supervised, train_plainly

PLAIN = """
import glob, os
import numpy as np
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
out = f"exp{len(glob.glob('exp*'))}"; os.mkdir(out)
if os.path.exists("state.pt"): raise SystemExit("another run's state is here")
ring = np.lib.format.open_memmap("ring.npy", "w+", np.float32, (7, 4)); ring[:] = 0
np.zeros(6).tofile("table.dat"); old = np.memmap("users.dat", np.float64, "r+") + 0
for step in range(32):
    ring[step % 7] = model[0].weight.detach()[0, :4].numpy()
    for name in ("table.dat", "users.dat"):
        table = np.memmap(name, np.float64, "r+"); table[step % 6] += float(ring[step % 7, 0])
        del table
    number = os.open("low.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(number, ring.tobytes()); os.close(number)
    for name, how in ((b"all.bin", "ab"), (b"now.bin", "wb")):
        with open(name, how) as f: f.write(ring[step % 7].tobytes())
    i = torch.randint(0, 96, (8,))
    if step in (9, 18, 27): model.load_state_dict(torch.load("best.pt"))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 4 != 3: continue
    weights = model.state_dict()
    torch.save(weights, "best.pt"); torch.save(weights, "state.pt")
    torch.save(weights, f"{out}/{step:02d}.pt")
    for old in sorted(glob.glob(f"{out}/??.pt"))[:-2]: os.remove(old)
    number = 0
    while os.path.exists(f"{out}/v{number}.npy"): number += 1
    np.save(f"{out}/v{number}.npy", weights["0.weight"].numpy())
    os.makedirs(f"{out}/new"); torch.save(weights, f"{out}/new/w.pt")
    if os.path.exists(f"{out}/folder{step % 8}"): shutil.rmtree(f"{out}/folder{step % 8}")
    os.rename(f"{out}/new", f"{out}/folder{step % 8}")
    if step > 3: os.replace(f"{out}/last.pt", f"{out}/previous.pt")
    with open(f"{out}/last.tmp", "wb") as f: torch.save(weights, f)
    os.replace(f"{out}/last.tmp", f"{out}/last.pt")
result = model.state_dict()
"""

LIGHTNING = """
import sys, torch, lightning, torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 4)
    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1]); self.log("loss", loss); return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)

lightning.seed_everything(4)
X = torch.randn(80, 8); data = TensorDataset(X, (X @ torch.randn(8, 4)).argmax(1))
module = Module()
saves = [
    ModelCheckpoint(monitor="loss", save_top_k=2, save_last=True, every_n_train_steps=4),
    ModelCheckpoint(dirpath="all", filename="m", save_top_k=-1, every_n_train_steps=6),
    ModelCheckpoint(dirpath="link", monitor="loss", save_last="link", every_n_train_steps=5),
]
lightning.Trainer(
    max_epochs=6, accelerator="cpu", logger=CSVLogger("."), callbacks=saves, log_every_n_steps=2,
    enable_progress_bar=False, enable_model_summary=False,
).fit(module, DataLoader(data, 16, shuffle=True))
torch.save(module.state_dict(), sys.argv[1])
"""

TRANSFORMERS = """
import sys, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
torch.manual_seed(0)
ids = torch.randint(3, 60, (64, 8)); data = [{"input_ids": i, "labels": i.sum() % 2} for i in ids]
model = BertForSequenceClassification(BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32))
arguments = TrainingArguments(
    output_dir="out", max_steps=28, per_device_train_batch_size=8, save_steps=4, save_total_limit=2,
    eval_strategy="steps", eval_steps=4, load_best_model_at_end=True, report_to="none",
    use_cpu=True, disable_tqdm=True)
Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16]).train()
torch.save(model.state_dict(), sys.argv[1])
"""


def both(tmp_path: Path, text: str) -> tuple[Ended, Ended]:
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "users.dat").write_bytes(bytes(48))
    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=("checkpoint.every_steps=6", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 23}]",
    )
    assert (expected.returncode, ended.returncode) == (0, 0), ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    return expected, ended


def test_files_replaced_rotated_numbered_and_renamed_since_are_as_undisturbed(
    tmp_path: Path,
) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"import shutil\n{prelude}{PLAIN}torch.save(result, sys.argv[-1])\n"

    expected, ended = both(tmp_path, text)

    assert contents(ended.folder) == contents(expected.folder)
    [told] = ended.found("files set aside")
    assert str(ended.folder / "exp0" / "19.pt") in told["files"]
    assert "wrote after step 18 set aside in" in ended.stderr
    assert (ended.run_dir / "aside" / "attempt_2" / "exp0" / "19.pt").exists()


@pytest.mark.parametrize(
    ("library", "text"),
    [
        pytest.param("lightning", LIGHTNING, marks=pytest.mark.exhaustive),
        pytest.param("transformers", TRANSFORMERS, marks=pytest.mark.exhaustive),
    ],
)
def test_checkpoint_callbacks_choose_the_same_names(
    tmp_path: Path, library: str, text: str
) -> None:
    pytest.importorskip(library)

    expected, ended = both(tmp_path, text)

    # What libraries write beside the tensors holds times, and the path of the folder.
    assert tensors(ended.folder) == tensors(expected.folder)
    assert ended.found("files set aside")


BLOCKED = """if step == 7 and not os.path.isfile("run/FOLDER"):
        if os.path.exists("run/FOLDER"): os.rename("run/FOLDER", "run/elsewhere")
        open("run/FOLDER", "w").close()"""
UNRECORDED = {
    "the record's folder is in the way": BLOCKED.replace("FOLDER", "files"),
    "the folder of older contents is in the way": BLOCKED.replace("FOLDER", "files/rank_0"),
    "another program": """subprocess.run(["sh", "-c", f"echo {float(loss)} > sub.txt"])""",
}


@pytest.mark.parametrize(
    "how",
    [
        name if "contents" not in name else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in UNRECORDED
    ],
)
def test_a_resume_is_not_called_exact_where_files_could_not_be_recorded(
    tmp_path: Path, how: str
) -> None:
    prelude = script("weight average by hand").split("import copy")[0]

    ended = supervised(
        tmp_path,
        f"import os, subprocess\n{prelude}{LOOP}".replace("HOW", UNRECORDED[how]),
        settings=("checkpoint.every_steps=6", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 9}]",
    )

    assert ended.returncode == 0, ended.stderr
    [resumed] = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "file" in resumed["reason"]
    if how == "another program":
        assert resumed["reason"].endswith("stay as they were last: sub.txt")


ROWS = """import os, sqlite3
with sqlite3.connect("rows.db") as base:
    base.execute("create table if not exists row(step)"); base.execute("insert into row values(-1)")
base.close()
"""


def test_an_attempt_from_the_beginning_finds_databases_as_the_first_did(tmp_path: Path) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    inserted = """base = sqlite3.connect("rows.db")
    base.execute("insert into row values(?)", (step,)); base.commit(); base.close()"""

    ended = supervised(
        tmp_path,
        f"{ROWS}{prelude}{LOOP}".replace("HOW", inserted),
        settings=("checkpoint.every_steps=1000", "parting.enabled=false"),
        options=("--policy", "observe_only"),
        faults="[{kind: sigkill, step: 3}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert _steps(tmp_path / "rows.db") == [-1, *range(14)]
    [kept] = (ended.run_dir / "aside").rglob("rows.db")
    assert _steps(kept) == [-1, 0, 1, 2, -1]  # the second attempt's came before torch
    assert any(f"kept in {kept.parents[0]}" in e["message"] for e in ended.events("warning"))


def _steps(path: Path) -> list[int]:
    base = sqlite3.connect(path)
    found = [step for (step,) in base.execute("select step from row")]
    base.close()
    return found


LOOP = """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(14):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    HOW
    if step % 2 == 0: torch.save(model.state_dict(), "best.pt")
result = model.state_dict()
torch.save(result, sys.argv[-1])
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in own_files(folder).items()}


def tensors(folder: Path) -> dict[str, Any]:
    return {name: tensor_data(path) for name, path in own_files(folder).items()}


def tensor_data(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return path.read_bytes()
    if path.is_symlink() or not zipfile.is_zipfile(path):
        return path.is_symlink() and path.readlink()
    with zipfile.ZipFile(path) as file:
        return {n.partition("/")[2]: file.read(n) for n in file.namelist() if "/data/" in n}


def own_files(folder: Path) -> dict[str, Path]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {
        name: path
        for name, path in found.items()
        if not name.startswith(("run", ".cases.sqlite")) and not path.is_dir()
    }
