"""Which ranks a run has: one, until several are supervised together."""

from __future__ import annotations

LEAD_RANK = 0
"""The rank whose records speak for the run where a reader takes those of one."""

ALL_RANKS = (LEAD_RANK,)
"""The ranks of an attempt, each a worker process of ours."""
