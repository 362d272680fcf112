"""The stacks of a hung worker in the order of reading: the script's own thread first."""

from __future__ import annotations

import re

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+).*:$", re.MULTILINE)


def arrange_stacks(text: str) -> str:
    """Returns the newest dump with its main thread first, and whether the one before was the same.

    `faulthandler` writes threads newest first, so that the main thread closes a dump; ``text`` may
    hold several dumps. Text without threads comes back as it is.
    """
    dumps = _dumps(text)
    if not dumps:
        return text
    *others, main = dumps[-1]
    said = [_titled("Main thread", main), *(_titled("Another thread", one) for one in others)]
    if len(dumps) > 1:
        same = _frames(dumps[-2][-1]) == _frames(main)
        told = "the same" if same else "not the same"
        why = "it waited" if same else "it was working, only slowly"
        said.insert(0, f"The main thread was at {told} place in the dump before: {why}.")
    return "\n\n".join(said)


def _dumps(text: str) -> list[list[str]]:
    starts = [found.start() for found in _THREAD.finditer(text)]
    dumps: list[list[str]] = []
    known: set[str] = set()
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else len(text)
        block = text[start:end].rstrip()
        name = _THREAD.findall(block)[0]
        if name in known or not dumps:  # a thread appears once in a dump
            dumps.append([])
            known = set()
        known.add(name)
        dumps[-1].append(block)
    return dumps


def _frames(block: str) -> str:
    return block.partition("\n")[2]


def _titled(title: str, block: str) -> str:
    return f"{title} (most recent call first):\n{_frames(block)}"
