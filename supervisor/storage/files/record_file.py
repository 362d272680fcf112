"""Records saved as JSON files that later versions can still read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from supervisor.errors import RunDirectoryError
from supervisor.storage.files.checked_record import build_record
from supervisor.storage.files.line_file import parse_json
from supervisor.storage.files.private_files import write_json

T = TypeVar("T")


def save_record(path: Path, record: Any, *, durable: bool = True) -> None:
    """Replaces `path` by `record` as JSON, mode 0600, atomically.

    Raises:
        OSError: the disk refuses; `path` is as it was.
    """
    write_json(path, record, durable=durable)


def load_record(path: Path, kind: type[T], *, help_text: str) -> T:
    """Returns the record that was saved at `path`.

    Unknown fields are ignored; missing ones take their defaults.

    Args:
        path: the file.
        kind: the dataclass, whose types are checked (`build_record`).
        help_text: what the user can do when it cannot be read; ends the message.

    Raises:
        RunDirectoryError: the file is missing, unreadable, or no such record.
    """
    try:
        return build_record(kind, parse_json(path.read_bytes()))
    except FileNotFoundError:
        raise RunDirectoryError(f"{path.parent}: no {path.name}: {help_text}") from None
    except OSError as error:
        raise RunDirectoryError(f"{path}: {error.strerror}: {help_text}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise RunDirectoryError(f"{path}: damaged ({error}): {help_text}") from error
