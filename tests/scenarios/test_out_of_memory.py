"""A training whose device has no longer room for its microbatches: it goes on with smaller ones."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import AT_UPDATES, supervised, train_plainly

ACCUMULATING = (
    PRELUDE
    + """
import supervisor, torch.utils.checkpoint
room = int(sys.argv[1])  # microbatches of so many fit from step 12 on: others use the device too

class Device(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = make_model(dropout=0.0)
        self.keeps_activations = True
    def gradient_checkpointing_enable(self):
        self.keeps_activations = False
    def gradient_checkpointing_disable(self):
        self.keeps_activations = True
    @property
    def is_gradient_checkpointing(self):
        return not self.keeps_activations
    def forward(self, x):
        if step >= 12 and len(x) > (room if self.keeps_activations else 2 * room):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if self.keeps_activations:
            return self.layer(x)
        return torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)

model = Device(); optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sizes = []
for step in range(30):
    rows = torch.randperm(96)[:64]
    size = supervisor.batch_size(64)
    sizes.append(size)
    for part in rows.split(size):
        loss = F.mse_loss(model(X[part]), Y[part]) * len(part) / 64
        loss.backward()
    optimizer.step(); optimizer.zero_grad()
torch.save({"sizes": sizes, "model": model.state_dict()}, sys.argv[-1])
"""
)


def test_activations_are_computed_again_then_microbatches_shrink_and_the_global_batch_stays(
    tmp_path: Path,
) -> None:
    expected = train_plainly(tmp_path / "plain", ACCUMULATING, ["64", "out.pt"])

    ended = supervised(
        tmp_path / "run",
        ACCUMULATING,
        ["16", "out.pt"],
        settings=("checkpoint.every_steps=4", "checkpoint.background=false"),
    )

    assert ended.returncode == 0, ended.stderr
    causes = [e["cause"] for e in ended.events("worker_exited")]
    assert causes == ["out_of_memory", "out_of_memory", "completed"]
    restarts = ended.events("restart")
    assert [(e["checkpoint_activations"], e["batch_factor"]) for e in restarts] == [
        (True, 1.0),
        (True, 0.5),
    ]
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact", "exact"]
    # A checkpoint of step 12 would come with the old size of step 12, so it is not used.
    assert [e["step"] for e in ended.events("resumed")][-1] == 8
    assert ended.result()["sizes"] == [64] * (9 - AT_UPDATES) + [32] * (21 + AT_UPDATES)
    ordered = [e for e in ended.events("action") if e["name"] == "checkpoint_activations"]
    assert [(e["outcome"], e["cause"]) for e in ordered] == [("applied", "resources")] * 2
    assert all(e["cost_s"] >= 0.0 for e in ordered)
    torch.testing.assert_close(ended.result()["model"], expected.result()["model"])
