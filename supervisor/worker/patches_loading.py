"""The patch by which batches are seen while they are fetched, before they are collated.

Installed only where `fast_forward.skip_loading` is on. Loader workers are other processes: what
they fetch is not seen, and loaded in a fast-forward too.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data._utils import fetch as fetching

from supervisor.worker.instrument import Seen


def watch_fetches(session: Seen) -> None:
    """Patches torch for the rest of this process's life. Called once, after `instrument`."""
    fetcher: Any = fetching._MapDatasetFetcher
    original = fetcher.fetch
    switch = session.switch

    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        if not switch.is_ours():
            return original(self, indices)
        return session.moments.fetch(indices, functools.partial(original, self, indices))

    fetcher.fetch = fetch
