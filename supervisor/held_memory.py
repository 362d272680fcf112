"""What all copies of the state that this process holds may take together.

How much memory is free, by the host and by each control group above this process.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from supervisor.settings import SnapshotSettings

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
STATUS = Path("/proc/self/status")
_NO_LIMIT = 1 << 60
"""Version 1 says 2**63 less a page where there is no limit."""
_FILES = (
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of versions 2 and 1: limits (from `memory.high` on processes are held up), usage, and what of it
are files read or written once, which the kernel gives back first."""


def free_bytes(root: Path = CGROUPS, own: Path = OWN) -> int:
    """Returns what may still be allocated before the host or a group's limit is met; at least 0."""
    free = int(psutil.virtual_memory().available)
    for limits, usage, inactive in _limiting(root, own):
        limit = min((n for n in map(_number, limits) if n is not None), default=_NO_LIMIT)
        used = _number(usage) if limit < _NO_LIMIT else None
        if used is not None:
            in_files = _entry(usage.with_name("memory.stat"), inactive) or 0
            free = min(free, limit - (used - in_files))
    return max(free, 0)


def taken_at_peak(status: Path = STATUS) -> int:
    """Returns how much more this process has held at its peak than it holds now: between two steps
    activations and gradients are not there, but they come again. 0 if unknown."""
    try:
        text = status.read_text()
        peak, now = [int(text.split(f"\n{name}:")[1].split()[0]) for name in ("VmHWM", "VmRSS")]
    except (OSError, ValueError, LookupError):
        return 0
    return max(peak - now, 0) * 1024


def count_oom_kills(root: Path = CGROUPS, own: Path = OWN) -> int:
    """Returns the number of out-of-memory kills in this process's control group; 0 if unknown.

    Only its growth during an attempt says something about that attempt.
    """
    for group in _groups(root, own):
        for name in ("memory.events", "memory.oom_control"):
            count = _entry(group / name, "oom_kill")
            if count is not None:
                return count
    return 0


@functools.cache
def _limiting(root: Path, own: Path) -> tuple[tuple[list[Path], Path, str], ...]:
    """The files of the groups that may limit memory; which groups these are does not change."""
    return tuple(
        ([group / name for name in limits], group / usage, inactive)
        for group in _groups(root, own)
        for limits, usage, inactive in _FILES
        if (group / usage).exists()
    )


def _groups(root: Path, own: Path) -> Iterator[Path]:
    """The control groups of this process, each followed by those above it.

    Inside a container its own group is often mounted as the root.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            bases = [root, root / "unified"]
        elif "memory" in controllers.split(","):
            bases = [root / "memory"]
        else:
            continue
        for base in bases:
            group = base / name.lstrip("/")
            while group != base:
                yield group
                group = group.parent
            yield base


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _entry(path: Path, wanted: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == wanted:
                return int(value)
    except (OSError, ValueError):  # not in a control group of this kind
        pass
    return None


BUFFER, PLACES, SNAPSHOTS = "buffer", "places", "snapshots"
TIGHT = 2.0
"""Times their share, copies are given back: one must not come and go with what the script holds for
a moment. At a quarter, as much as they take is free beside them still."""

UNTRAINED = 0.25
"""Of the share, before this process has made a step: gradients, activations and what the optimizer
needs besides are still to come, for Adam three to four times the weights."""


@dataclass(frozen=True, slots=True)
class _Held:
    size: int
    copies: int

    @property
    def bytes(self) -> int:
        return self.size * self.copies


class HeldMemory:
    """Asked before each copy is made. The copy that is being written (`BUFFER`), and with several
    ranks the `PLACES` beside the process, come before `SNAPSHOTS`: by them a failure loses nothing,
    and a rollback can go to the disk.

    Args:
        settings: of `max_share`.
        most: copies that the parent allows; None for any number.
        first: owner → copies for which room is left by snapshots.
        ranks: of this node, which share its memory.
        free: what the node has; `at_peak`: what this process will take of it again.
        tell: called with the number of copies, before it changes.

    Attributes:
        offered: snapshots for which this rank has room.
        agreed: those for which all ranks have, which must keep the same ones; None alone.
        size: of the last copy that was asked for.
        has_trained: a step was made in this process, so that its peak is known.
        beside: bytes of the logs of collectives (`worker/healing/`), which count like copies.
    """

    def __init__(
        self,
        settings: SnapshotSettings,
        *,
        most: int | None = None,
        first: dict[str, int] | None = None,
        ranks: int = 1,
        free: Callable[[], int] = free_bytes,
        at_peak: Callable[[], int] = taken_at_peak,
        tell: Callable[[int], None] = lambda copies: None,
    ) -> None:
        self.offered = self.size = self.beside = 0
        self.agreed: int | None = None
        self.has_trained = False
        self._settings = settings
        self._most = most
        self._first = {BUFFER: 1} if first is None else first
        self._ranks = ranks
        self._free = free
        self._at_peak = at_peak
        self._tell = tell
        self._held: dict[str, _Held] = {}

    def free(self) -> int:
        """What this rank could still take; what the training takes at its peak is kept free."""
        return max(0, self._free() // self._ranks - self._at_peak())

    def allows(self, who: str, size: int, copies: int = 1) -> bool:
        """Whether `who` may hold so many copies of this size, instead of those that it holds."""
        self.size = size
        own, others = self._held.get(who), [h for w, h in self._held.items() if w != who]
        if self._most is not None and copies + sum(h.copies for h in others) > self._most:
            return False
        needed = size * copies + sum(h.bytes for h in others) + self.beside
        has_it = own is not None and own.bytes >= size * copies
        return needed <= self._share() * (TIGHT if has_it else 1.0)

    def takes_beside(self, size: int) -> bool:
        """Whether `beside` may be so many bytes, which it is then."""
        copies = sum(held.bytes for held in self._held.values())
        fits = size + copies <= self._share() * (TIGHT if self.beside >= size else 1.0)
        self.beside = size if fits else 0
        return fits

    def snapshots(self, size: int, wished: int) -> int:
        """How many snapshots of this size may be held."""
        self.size = size
        reserved = {
            who: held if (held := self._held.get(who)) else _Held(size, copies)
            for who, copies in self._first.items()
        }
        taken = sum(held.bytes for held in reserved.values()) + self.beside
        most = min(wished, int(self._settings.max_gib * (1 << 30) // size))
        if self._most is not None:
            most = min(most, max(0, self._most - sum(h.copies for h in reserved.values())))
        own, share = self._held.get(SNAPSHOTS, _Held(0, 0)), self._share()
        fits = int((share - taken) // size)
        if fits < own.copies and own.size == size and taken + own.bytes <= TIGHT * share:
            fits = own.copies
        self.offered = max(0, min(fits, most))
        return self.offered if self.agreed is None else min(self.agreed, most)

    def holds(self, who: str, size: int, copies: int) -> None:
        """Told before a copy is made, and after one was given back."""
        before = self.copies
        given_back = copies < self._held.get(who, _Held(0, 0)).copies
        if copies:
            self._held[who] = _Held(size, copies)
        else:
            self._held.pop(who, None)
        if self.copies != before:
            self._tell(self.copies)
        if given_back:
            return_to_system()

    def leaves_out(self, who: str) -> None:
        """There will be none of these copies: no room is left for them any more."""
        self._first.pop(who, None)

    @property
    def copies(self) -> int:
        """That are held now."""
        return sum(held.copies for held in self._held.values())

    @property
    def planned(self) -> int:
        """Copies that will be held, as it looks now."""
        size = max(self.size, 1)
        first = sum(
            self._first[who] for who in self._first if self.allows(who, size, self._first[who])
        )
        return first + (self.offered if self.agreed is None else self.agreed)

    def plan(self, on_disk: int) -> str:
        """Returns what will be held, in words; `on_disk`: checkpoints at a time."""
        planned, size = self.planned, in_words(self.size)
        disk = f"{in_words(on_disk * self.size)} on disk"
        if planned > 1:
            return f"{planned} copies of {size}, {disk}"
        held = f"1 copy of {size}: a rollback goes to the disk"
        if planned == 0:
            held = f"no copy of the state ({size}): checkpoints are written while the training "
            held += "waits, and a rollback goes to the disk"
        return f"{held}; {in_words(self.free())} are free; {disk}"

    def _share(self) -> float:
        """Bytes for all copies: of what would be free without them."""
        held = sum(held.bytes for held in self._held.values()) + self.beside
        share = self._settings.max_share * (self.free() + held)
        return share if self.has_trained else UNTRAINED * share


def in_words(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


_M_MMAP_THRESHOLD = -3
LARGE = 1 << 20


def leave_no_holes() -> None:
    """From here on large blocks are returned to the system as soon as they are free: otherwise the
    C library keeps those of up to 32 MB, with small ones of ours between them. It costs the pages'
    first touch each time, so it is for where memory is short."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def return_to_system() -> None:
    """Freed memory is kept for later by the C library, and pinned memory by torch.

    Without this a training of 300 MB took 1.2 GB instead of 0.7 after some saves: between the holes
    that its gradients leave lies what we have allocated meanwhile.
    """
    torch = sys.modules.get("torch")
    empty = getattr(getattr(torch, "_C", None), "_host_emptyCache", None)
    if torch is not None and empty is not None and torch.cuda.is_initialized():
        empty()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
