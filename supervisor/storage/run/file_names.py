"""One name for each of the script's files, also where a folder of it has two.

A trainer that makes a link `latest` to its folder writes and reads by both names. A file that was
put aside by one would be missing by the other.
"""

from __future__ import annotations

import os

_links: set[str] = set()
_real, _is_link = os.path.realpath, os.path.islink


def link_is_made(path: str) -> None:
    """Called when the script makes `path` a link."""
    _links.add(os.path.join(absolute(path), ""))


def absolute(path: str) -> str:
    """Returns the absolute path of a file, through no folder that is a link of the script's."""
    name = os.path.abspath(path)
    for link in _links:
        if name.startswith(link) and _is_link(link[:-1]):
            return absolute(os.path.join(_real(link[:-1]), name[len(link) :]))
    return name
