"""The user's API. Every function is a plain pass-through when the script runs unsupervised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.worker import current

if TYPE_CHECKING:
    from supervisor.detectors.base import Detector
    from supervisor.records import Alert
    from supervisor.worker.mistakes.evidence.mistake import Mistake

T = TypeVar("T")


def observe(**values: Any) -> None:
    """Adds numbers to the record of the step under way: latents, rewards, anything numeric.

    A tensor of more than one element counts as its mean; `mu` and `logvar` of a VAE become the
    figures that the collapse detector watches. Call it anywhere between two updates, on any rank.
    """
    if current.api is not None:
        current.api.observe(values)


def announce(change: str = "") -> None:
    """Says that from the step under way on something is different on purpose.

    Other data, another loss weight, another rate: the levels of before are forgotten and learned
    anew within some ten steps, so that the change itself is no alarm. Call it before the first
    forward with the change, on every rank; again at each further change.

    Args:
        change: what changes, for the journal and the report. The name of a kind of silent mistake
            (docs/mistakes.md) says that it is meant so, and nothing else.
    """
    if current.api is not None:
        current.api.announce(change)


def track(**objects: Any) -> None:
    """Names objects with ``state_dict`` and ``load_state_dict`` that are not found by themselves.

    Raises:
        UsageError: an object lacks one of the two.
    """
    if current.api is not None:
        for name, value in objects.items():
            current.api.track(name, value)


def batches(loader: Iterable[T], epochs: int | None = None) -> Iterator[T]:
    """Goes through `loader` again and again: `epochs` times, or for ever.

    Under supervision it knows its place, so a resume continues there, and a policy may leave
    batches out (action ``skip_data``).
    """
    epoch = 0
    while epochs is None or epoch < epochs:
        for batch in loader:
            if current.api is not None and current.api.leave_out_batch():
                continue
            yield batch
        epoch += 1


def batch_size(wanted: int) -> int:
    """Returns the microbatch size that the policy allows now, at most `wanted`."""
    if current.api is None:
        return wanted
    return int(current.api.allowed_batch_size(wanted))


def on_alert(handler: Callable[[Alert], None]) -> Callable[[Alert], None]:
    """Calls `handler` with every alert; usable as a decorator. One that raises is dropped."""
    if current.api is not None:
        current.api.add_alert_handler(handler)
    return handler


def register_detector(detector: type[Detector] | Detector) -> None:
    """Adds a detector of the user's own to those that judge every step."""
    if current.api is not None:
        current.api.add_detector(detector() if isinstance(detector, type) else detector)


def register_mistake(kind: type[Mistake]) -> type[Mistake]:
    """Looks for a kind of silent mistake of the user's own; usable as a decorator, before the first
    update. `supervisor.testing.mistake_check.check_mistake` says whether it is fit for that."""
    if current.api is not None:
        current.api.register_mistake(kind)
    return kind


class Run:
    """The same functions on one object, for ``def train(run): ...``.

    Attributes:
        directory: the run directory.
    """

    observe = staticmethod(observe)
    announce = staticmethod(announce)
    track = staticmethod(track)
    batches = staticmethod(batches)
    batch_size = staticmethod(batch_size)
    on_alert = staticmethod(on_alert)
    register_detector = staticmethod(register_detector)
    register_mistake = staticmethod(register_mistake)

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __repr__(self) -> str:
        return f"Run(directory={str(self.directory)!r})"
