"""Objects of other kinds than the usual ones: classes derived from tensors, memory in which nothing
was written, words that are one object, optimizers that are written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios import runs

BEGINNING = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
torch.manual_seed(0)
"""

TAGGED = """
class Tagged(torch.Tensor):  # as MONAI's MetaTensor: it knows its rows, and can be cut along them
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        names = getattr(args[0], "names_of_rows", None) if isinstance(args[0], Tagged) else None
        if isinstance(out, Tagged) and names is not None:
            if func is torch.Tensor.__getitem__ and out.dim() and isinstance(args[1], slice):
                if args[0].shape[0] != len(names):
                    raise ValueError("names and rows are not the same number")
                names = names[args[1]]
            out.names_of_rows = names
        return out

class Rows(Dataset):
    def __len__(self): return 48
    def __getitem__(self, i):
        return torch.randn(4, generator=torch.Generator().manual_seed(i)), f"case {i}"

def collate(rows):
    batch = default_collate([x for x, _ in rows]).as_subclass(Tagged)
    batch.names_of_rows = [name for _, name in rows]
    return batch

net = torch.nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())
for epoch in range(5):
    for batch in DataLoader(Rows(), 8, shuffle=True, collate_fn=collate):
        loss = net(batch).as_subclass(torch.Tensor).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    print(epoch, loss.item(), len(batch[:3].names_of_rows))
torch.save(net.state_dict(), sys.argv[-1])
"""

REFUSING = """
class Units(torch.Tensor):  # refuses all that would lose its unit, and counts what it is asked
    REFUSED = "clone detach equal tolist numpy cpu contiguous reshape view copy_ data_ptr".split()
    asked = 0
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in cls.REFUSED:
            raise TypeError(f"{func.__name__}: units would be lost")
        Units.asked += 1
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Units) and isinstance(args[0], Units):
            out.unit = getattr(args[0], "unit", "?")
        return out
    def __deepcopy__(self, memo): raise TypeError("no copies")
    def __reduce_ex__(self, version): raise TypeError("no pickles")

def units(tensor):
    tensor = tensor.as_subclass(Units); tensor.unit = "m"
    return tensor

net = torch.nn.Linear(4, 1)
scale, mean = units(torch.ones(4)), units(torch.zeros(4))
opt = torch.optim.Adam(net.parameters(), 1e-2)
best = None
for step in range(40):
    x = units(torch.randn(8, 4)) * scale
    mean = mean * 0.9 + x.mean(0) * 0.1
    loss = net(x).pow(2).mean()  # is one, too
    opt.zero_grad(); loss.backward(); opt.step()
    scale.mul_(0.99)
    if loss.item() < 1e9 and bool(loss > 0): best = loss
    if step % 10 == 9: print(step, loss.unit, float(loss))
plain = [one.as_subclass(torch.Tensor) for one in (mean, scale, best.sum())]
torch.save([net.state_dict(), plain[:2], mean.unit], sys.argv[-1])
"""

UNWRITTEN = """
class Bank(torch.nn.Module):
    def __init__(self):
        super().__init__()
        rows = torch.empty(100, 2); rows[50:] = float("nan")  # as memory may hold it
        self.register_buffer("rows", rows, persistent=False)
        self.count = 0
    def forward(self, x):
        self.rows[self.count] = x.detach().mean(0)[:2]
        self.count += 1
        return x

net = torch.nn.Sequential(torch.nn.Linear(4, 4), Bank(), torch.nn.Linear(4, 1))
opt = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(40):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
torch.save([net.state_dict(), net[1].rows[:40].clone()], sys.argv[-1])
"""

WORDS = """
net = torch.nn.Linear(4, 1)
opt = torch.optim.AdamW(net.parameters(), 1e-2)
best, seen, status = {"metric": "loss", "value": 1e9}, {}, "warmup"
for step in range(40):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 5 == 4:
        status = "train" if step > 20 else status
        seen[status] = ("loss", step)
        if loss.item() < best["value"]: best.update(value=loss.item(), status=status)
words = {"step": step, "status": status, "best": best, "seen": seen, "exp_avg": 1, "loss": 0}
torch.save({**words, "net": net.state_dict(), "optimizer": opt.state_dict()}, sys.argv[-1])
"""

BY_HAND = """
class Rows:  # an optimizer of its own for a table, beside one of torch's for the rest
    __slots__ = ("table", "sums", "count")
    def __init__(self, table): self.table, self.sums, self.count = table, torch.zeros_like(table), 0
    @torch.no_grad()
    def step(self):
        gradient, self.table.grad = self.table.grad, None
        self.count += 1
        self.sums.add_(gradient * gradient)
        self.table.sub_(0.1 * gradient / (self.sums.sqrt() + 1e-8))

table, net = torch.randn(20, 4, requires_grad=True), torch.nn.Linear(4, 1)
opt, rows = torch.optim.Adam(net.parameters(), 1e-2), Rows(table)
for step in range(40):
    i = torch.randint(0, 20, (16,))
    loss = (net(table[i]) - i[:, None] / 20).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step(); rows.step()
torch.save([net.state_dict(), table.detach(), rows.sums, rows.count], sys.argv[-1])
"""

SCRIPTS = {
    "batches that can be cut along their rows alone": TAGGED,
    "tensors that refuse to be copied, read by item, float and bool": REFUSING,
    "a buffer of torch.empty": UNWRITTEN,
    "words of a checkpoint": WORDS,
    "an optimizer by hand beside one of torch's": BY_HAND,
}
FEW = ("tensors that refuse to be copied, read by item, float and bool", "words of a checkpoint")


@pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.exhaustive) for name in SCRIPTS],
)
def test_a_kill_is_resumed_exactly_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    text = BEGINNING + SCRIPTS[name]
    expected = runs.train_plainly(tmp_path / "plain", text)
    assert expected.returncode == 0, expected.stderr

    ended = runs.supervised(
        tmp_path / "run",
        text,
        settings=("checkpoint.every_steps=8", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 13}, {kind: sigkill, step: 27}]",
    )

    assert ended.returncode == 0, ended.stderr
    said = [event["exactness"] for event in ended.events("resumed")]
    assert said == ["exact", "exact"], ended.events("resumed")
    assert (ended.folder / "out.pt").read_bytes() == (expected.folder / "out.pt").read_bytes()
    assert ended.events("warning") == []


LINKED = """
import os, time
out = f"out/{time.time_ns()}"  # another name in each process
os.makedirs(f"{out}/kept")
os.symlink(os.path.basename(out), "out/latest")
net = torch.nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(40):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 10 == 9:
        torch.save(net.state_dict(), f"{out}/kept/{step}.pt")
        if os.path.lexists(f"{out}/kept/best.pt"): os.remove(f"{out}/kept/best.pt")
        os.symlink(f"{step}.pt", f"{out}/kept/best.pt")
        with open("out/latest/log.txt", "a") as log: print(step, loss.item(), file=log)
print(len(os.listdir("out")), sorted(os.listdir("out/latest/kept")), open(f"{out}/log.txt").read())
torch.save([net.state_dict(), torch.load("out/latest/kept/best.pt")], sys.argv[-1])
"""


def test_a_folder_with_a_link_to_it_comes_back_under_both_names(tmp_path: Path) -> None:
    text = BEGINNING + LINKED
    expected = runs.train_plainly(tmp_path / "plain", text)
    assert expected.returncode == 0, expected.stderr

    ended = runs.supervised(
        tmp_path / "run",
        text,
        settings=("checkpoint.every_steps=8", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 13}, {kind: sigkill, step: 27}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert {event["exactness"] for event in ended.events("resumed")} == {"exact"}
    assert ended.stdout == expected.stdout
    assert runs.differences(ended.result(), expected.result()) == []
