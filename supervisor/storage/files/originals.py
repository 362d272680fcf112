"""Python's functions for files, as they were before a worker patches them.

The patches follow the script's files. What the supervisor itself opens, renames, removes and makes
goes past them, through these.
"""

from __future__ import annotations

import os

own_open, own_os_open = open, os.open
own_rename, own_replace, own_link = os.rename, os.replace, os.link
own_unlink, own_mkdir = os.unlink, os.mkdir
