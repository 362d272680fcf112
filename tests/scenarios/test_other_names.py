"""Files with another name in each process, told apart by their times, or not written by `open`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import script
from tests.scenarios.runs import Ended, supervised, train_plainly

SETTINGS = ("checkpoint.every_steps=6", "checkpoint.background=false")
UPDATE = """
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
BEGIN = """
import glob, os, signal, sys
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
TEMPORARY = f"""{BEGIN}
import tempfile
with tempfile.TemporaryDirectory() as folder:
    best = os.path.join(folder, "best.pt"); torch.save(model.state_dict(), best)
    for step in range(24):
        {UPDATE.strip().replace(chr(10), chr(10) + "    ")}
        if step == 3: torch.save(model.state_dict(), best)
    result = torch.load(best)
"""
OF_THE_TIME = f"""{BEGIN}
import datetime, pathlib
os.makedirs("runs")
out = pathlib.Path("runs") / datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
(out / "parts").mkdir(parents=True)
log = open(out / "log.txt", "w")
for step in range(24):
    {UPDATE.strip()}
    log.write(f"{{step}} {{loss.item()}}\\n")
    torch.save(model.state_dict(), out / "parts" / f"{{step:02d}}.pt")
    for old in sorted((out / "parts").glob("*.pt"))[:-3]: old.unlink()
    if step in (2, 9):
        (out / "best.pt").unlink(missing_ok=True)
        os.link(out / "parts" / f"{{step:02d}}.pt", out / "best.pt")
log.close(); assert len(os.listdir("runs")) == 1; out.rename("final")
result = model.state_dict()
"""
BY_AGE = f"""{BEGIN}
import time
os.makedirs("final")
for step in range(24):
    {UPDATE.strip()}
    torch.save(model.state_dict(), f"final/{{loss.item():.6f}}.pt"); time.sleep(0.01)
    by_age = sorted(glob.glob("final/*.pt"), key=os.path.getmtime)
    for old in by_age[:-8]: os.remove(old)
result = model.state_dict()
"""
IN_A_THREAD = f"""{BEGIN}
from concurrent.futures import ThreadPoolExecutor
os.makedirs("final"); pool = ThreadPoolExecutor(1)
for step in range(24):
    {UPDATE.strip()}
    if step % 2:
        state = {{name: value.clone() for name, value in model.state_dict().items()}}
        pool.submit(torch.save, state, f"final/{{step}}.pt").result()
pool.shutdown()
result = model.state_dict()
"""
TRACED = f"""{BEGIN}
for step in range(24):
    {UPDATE.strip()}
    if step == 3: torch.jit.trace(model, X[:2]).save("traced.ts")
traced = torch.jit.load("traced.ts"); model(X)
torch.jit.trace(model, X[:2])
result = traced.state_dict()
"""
COPIED = f"""{BEGIN}
import subprocess
os.makedirs("final")
for step in range(24):
    {UPDATE.strip()}
    torch.save(model.state_dict(), "newest.pt")
    if step % 5 == 0: subprocess.run(["cp", "newest.pt", f"final/{{step}}.pt"], check=True)
result = model.state_dict()
"""
MAPPED = f"""{BEGIN}
import mmap, struct
with open("ring.bin", "wb") as file: file.write(bytes(8 * 32))
file = open("ring.bin", "r+b"); ring = mmap.mmap(file.fileno(), 0)
for step in range(24):
    {UPDATE.strip()}
    struct.pack_into("d", ring, 8 * step, loss.item())
ring.flush(); os.makedirs("final")
open("final/ring.txt", "w").write(open("ring.bin", "rb").read().hex())
result = model.state_dict()
"""
MADE_ANEW = f"""{BEGIN}
import shutil, tempfile
kept = []
for step in range(24):
    if step % 3 == 0: folder = tempfile.mkdtemp(prefix="part-", dir=".")
    {UPDATE.strip()}
    torch.save(model.state_dict(), os.path.join(folder, f"{{step:02d}}.pt"))
    if step % 3 == 2:
        number, path = tempfile.mkstemp(suffix=".pt", dir=".")
        with os.fdopen(number, "wb") as file: torch.save(model.state_dict(), file)
        with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as file:
            torch.save(model.state_dict(), file)
        os.replace(file.name, os.path.join(folder, "whole.pt"))
        kept.append((loss.item(), step, folder, path)); kept.sort()
        for _, _, worse, its in kept[4:]: shutil.rmtree(worse); os.remove(its)
        del kept[4:]
os.makedirs("final")
for _, step, folder, path in kept:
    os.rename(folder, f"final/{{step}}"); os.rename(path, f"final/{{step}}.pt")
result = model.state_dict()
"""
STYLES = {
    "temporary folder": TEMPORARY,
    "folder of the time": OF_THE_TIME,
    "made anew in the training": MADE_ANEW,
    "by age": BY_AGE,
    "in a thread": IN_A_THREAD,
    "traced": TRACED,
    "copied by another program": COPIED,
    "mapped": MAPPED,
}


@pytest.mark.parametrize("style", STYLES)
def test_they_are_those_of_plain_python_after_two_kills(style: str, tmp_path: Path) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"{prelude}{STYLES[style]}torch.save(result, sys.argv[-1])\n"

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=SETTINGS,
        faults="[{kind: sigkill, step: 20}, {kind: sigkill, step: 22, moment: forward}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact", "exact"]
    assert _weights(ended) == _weights(expected)
    assert _texts(ended) == _texts(expected)


def _weights(ended: Ended) -> dict[str, list[float]]:
    return {
        str(path.relative_to(ended.folder)): [
            value
            for tensor in ended.result(str(path)).values()
            for value in tensor.flatten().tolist()
        ]
        for path in [ended.folder / "out.pt", *ended.folder.glob("final/**/*.pt")]
    }


def _texts(ended: Ended) -> list[str]:
    return [path.read_text() for path in ended.folder.glob("final/*.txt")]
