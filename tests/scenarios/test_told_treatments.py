"""What was done to a training is told: at the terminal while it runs, at its end, in the report."""

from __future__ import annotations

from pathlib import Path

from supervisor.report.gathering import gather
from supervisor.storage.journal.events import count_treatments, read_journal
from supervisor.storage.steps.applied_rates import read_rates
from supervisor.storage.steps.flight_reader import FlightReader
from tests.scenarios.runs import supervised

WRONG_SCHEDULE = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 2e-2)
goal = torch.randn(20, 1)
for step in range(300):
    if step >= 150:
        optimizer.param_groups[0]["lr"] = 20.0
    x = torch.randn(32, 20)
    loss = (model(x) - x @ goal).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_rate_that_was_overridden_is_told_at_the_end(tmp_path: Path) -> None:
    ended = supervised(tmp_path, WRONG_SCHEDULE)

    counted = count_treatments(read_journal(ended.run_dir / "events.jsonl"))
    told = ended.stderr.count("supervisor: treated at step")
    recorder = ended.run_dir / "steps" / "rank_0.steps"
    rates, rows = read_rates(recorder), FlightReader(recorder).read()

    assert ended.returncode == 0, ended.stderr
    assert counted["limit_lr"] == 1
    assert told == sum(counted.values())
    assert f"supervisor: treated {told} times: " in ended.stderr
    assert f"learning rate held at x0.001 for {len(rates)} of 300 steps" in ended.stderr
    assert len(rates) >= 140
    assert all(rows["lr"][row] == 20.0 for row in rates)
    assert f"and {told} treatments" in gather(ended.run_dir).verdict
