"""A whole run tells a webhook what happens, and a webhook that fails changes nothing."""

from __future__ import annotations

from pathlib import Path

from tests.parent.notices.servers import Hook, running
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised

LOOP = f"""{PRELUDE}
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(40):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]) * (float("nan") if step == 25 else 1.0)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_treatment_restart_and_end_are_told(tmp_path: Path) -> None:
    with running(Hook()) as hook:
        ended = supervised(
            tmp_path,
            LOOP,
            settings=(f"notify.webhook={hook.url}", "notify.at_least_s=0"),
            faults="[{kind: sigkill, step: 30}]",
        )

    assert ended.returncode == 0, ended.stderr
    told = [(got["event"], got["step"]) for got in hook.got]
    assert ("treated", 25) in told
    assert [event for event, _ in told if event == "restart"] == ["restart"]
    assert told[-1][0] == "completed"
    assert {got["run"] for got in hook.got} == {"run"}


def test_a_webhook_that_cannot_be_reached_is_a_warning(tmp_path: Path) -> None:
    hook = Hook()
    hook.server_close()

    ended = supervised(
        tmp_path, LOOP, settings=(f"notify.webhook={hook.url}", "notify.events=[completed]")
    )

    assert ended.returncode == 0
    assert "notify.webhook: completed was not told" in ended.stderr
    assert hook.url not in ended.stderr
