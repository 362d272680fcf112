from __future__ import annotations

import random
import subprocess
import sys

from supervisor.detectors.rewards import RewardDriftDetector
from supervisor.records import Alert, StepRecord


def alerts_of(rewards: list[float]) -> list[Alert]:
    detector = RewardDriftDetector()
    records = [StepRecord(step=n, observed={"reward": reward}) for n, reward in enumerate(rewards)]
    return [alert for alert in map(detector.update, records) if alert is not None]


def test_a_reward_that_falls_is_told_with_the_distance_of_the_test() -> None:
    noise = random.Random(0)
    rewards = [noise.gauss(10.0 if step < 200 else 6.0, 1.0) for step in range(400)]

    (alert,) = alerts_of(rewards)

    assert alert.kind == "reward_drift"
    assert 200 < alert.step < 300
    assert 0.45 < alert.metadata["ks"] <= 1.0


def test_a_mean_that_a_few_rewards_carry_is_no_other_distribution() -> None:
    """The mean falls by 20 %, but the two samples could well come from one distribution."""
    rewards = [10.0 + 0.001 * (step % 7) for step in range(100)]
    rewards += [10.0 + 0.001 * (step % 7) if step % 10 else -10.0 for step in range(100, 200)]

    assert alerts_of(rewards) == []


def test_scipy_is_imported_for_rewards_that_moved_only() -> None:
    program = (
        "import sys\n"
        "from supervisor.detectors.rewards import RewardDriftDetector\n"
        "from supervisor.records import StepRecord\n"
        "detector = RewardDriftDetector()\n"
        "for step in range(300):\n"
        "    detector.update(StepRecord(step=step, observed={'reward': 1.0}))\n"
        "sys.exit('scipy' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
