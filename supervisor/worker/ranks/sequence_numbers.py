"""How many collectives of a group this rank has called: torch counts them, or who makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SequenceNumbers:
    """Attributes:
    called: group's name → collectives, where the groups of the script exchange nothing
        themselves (`worker/healing/`); None where torch counts.
    """

    called: Mapping[str, int] | None = None

    @classmethod
    def of(cls, group: Any) -> int:
        """Raises RuntimeError where nobody counts."""
        if cls.called is not None:
            return cls.called.get(group.group_name, 0)
        return int(group._get_sequence_number_for_group())
