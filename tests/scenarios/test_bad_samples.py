"""A data set with samples that cannot be loaded: found, named, tried again, then left out."""

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
