"""The agent of a node: torch's own, which starts the ranks that the parent orders.

Started by the parent alone. Orders come as JSON lines on standard input, reports go as JSON lines
to standard output; when the input ends, the parent is gone and so are the ranks.
"""

from __future__ import annotations

import json
import sys

from supervisor.agent.rank_agent import Channel, RankAgent, count_local_ranks
from supervisor.ranks import RankLaunch


def main(arguments: list[str]) -> int:
    """Runs until the parent closes the channel; returns the exit code.

    Args:
        arguments: the fields of `RankLaunch` as one JSON object.
    """
    launch = RankLaunch(**json.loads(arguments[0]))
    channel = Channel(sys.stdin.fileno(), sys.stdout.fileno())
    try:
        ranks = count_local_ranks(launch.nproc_per_node)
    except ValueError as error:
        channel.report(failed=str(error))
        return 1
    channel.report(local_ranks=ranks)
    RankAgent(ranks, channel).run()
    return 0
