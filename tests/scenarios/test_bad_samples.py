"""Samples that cannot be loaded, or that are not finite: found, named, then left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised

SCRIPT = (
    PRELUDE
    + """
class Rotten(torch.utils.data.Dataset):
    def __len__(self): return 96
    def __getitem__(self, index):
        if index == 37 or index == 61: raise OSError(f"cannot read picture {index}")
        return X[index], Y[index]

model = make_model(dropout=0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loader = torch.utils.data.DataLoader(
    Rotten(), batch_size=16, shuffle=True, num_workers=int(sys.argv[1])
)
seen = 0
for epoch in range(3):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        seen += len(x)
torch.save(torch.tensor(seen), sys.argv[-1])
"""
)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_samples_that_cannot_be_loaded_are_named_tried_again_and_left_out(
    tmp_path: Path, workers: str
) -> None:
    ended = supervised(
        tmp_path,
        SCRIPT,
        (workers, "out.pt"),
        settings=("checkpoint.every_steps=2", "checkpoint.background=false"),
    )

    exits = [e for e in ended.events("worker_exited") if e["cause"] == "exception"]
    told = [e["message"] for e in ended.events("warning")]
    assert ended.returncode == 0, ended.stderr
    assert int(ended.result()) == 3 * (96 - 2)
    assert len(exits) == 1
    assert "of Rotten of 96 raised OSError: cannot read picture" in str(exits[0]["evidence"])
    for sample in ("37", "61"):
        line = f"left out: sample {sample} of Rotten of 96 raised OSError: cannot read picture"
        assert any(message.startswith(line) for message in told)


POISONED = (
    PRELUDE
    + """
X[37, 3] = float("nan")
model = make_model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, num_workers=1)
seen = 0
for epoch in range(6):
    batches = iter(loader)
    ahead = next(batches)
    while ahead is not None:
        (x, y), ahead = ahead, next(batches, None)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        seen += len(x)
torch.save(torch.tensor(seen), sys.argv[-1])
"""
)


def test_a_poisoned_sample_is_named_and_the_next_epochs_go_without_it_also_after_a_kill(
    tmp_path: Path,
) -> None:
    settings = ("checkpoint.every_steps=5", "checkpoint.background=false")

    killed = supervised(tmp_path, POISONED, settings=settings, faults="[{kind: sigkill, step: 28}]")

    assert killed.returncode == 0, killed.stderr
    told = [e["message"] for e in killed.events("warning")]
    assert any(m.startswith("sample 37 of TensorDataset of 96 holds NaN") for m in told)
    assert "left out: sample 37 of TensorDataset of 96 holds NaN or infinity" in told
    # The script fetches ahead, so the first time it comes the newest batch is another one.
    assert len(killed.events("update_skipped")) == 2
    assert int(killed.result()) == 6 * 96 - 4
    assert [e["exactness"] for e in killed.events("resumed")] == ["exact"]
    assert len(killed.found("recorded loss")) == 1
