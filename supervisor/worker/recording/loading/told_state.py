"""Where a library's stream of samples stands, as its own `state_dict` tells it.

Hugging Face's iterable data sets have it, for example. What it tells may be incomplete (a shuffle
buffer is lost): so a replay that goes on from such a state compares the batches behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from supervisor.worker.recording.loading.fingerprint import CannotTell
from supervisor.worker.recording.loading.named_globals import is_users

_MISSING = object()


def tells_state(data: Any) -> bool:
    """Whether a library's data set can tell where it stands, and go on from there.

    Methods of the script's are not called at times at which it does not call them.
    """
    told, taken = (getattr(type(data), name, None) for name in ("state_dict", "load_state_dict"))
    codes = [getattr(method, "__code__", None) for method in (told, taken)]
    return all(code is not None and not is_users(code.co_filename) for code in codes)


def told_state(data: Any) -> str:
    """Returns the state as JSON.

    Raises:
        CannotTell: there is more in it than numbers, texts, lists and dictionaries.
    """
    state = data.state_dict()
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise CannotTell(f"what it tells of its state: {error}") from error
    if json.loads(text) != state:
        raise CannotTell("what it tells of its state is more than numbers and texts")
    return text


def go_on_from(fetcher: Any, state: str) -> Callable[[], None]:
    """Gives a fetcher an iterator that stands at `state`.

    Returns:
        To be called when the first sample was made: the data set forgets that it was to begin
        there, so that its next epoch begins at its start.
    """
    data = fetcher.dataset
    own = vars(data)
    before = dict(own)
    data.load_state_dict(json.loads(state))
    loaded = {k: v for k, v in own.items() if before.get(k, _MISSING) is not v}
    fetcher.dataset_iter = iter(data)

    def forget() -> None:
        for name, value in loaded.items():
            if own.get(name, _MISSING) is value:  # nothing has used it up
                if name in before:
                    own[name] = before[name]
                else:
                    del own[name]

    return forget
