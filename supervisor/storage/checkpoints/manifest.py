"""``manifest.json``: what a checkpoint holds, with checksums that reveal damage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from supervisor.errors import CheckpointDamaged
from supervisor.records import plain
from supervisor.storage.files.json_files import parse_json

MANIFEST = "manifest.json"
_FORMAT = "training-supervisor checkpoint 1"
_HELP = "use an older checkpoint, and check this disk and its memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Size and xxh3_128 (hexadecimal) of one file."""

    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One durable checkpoint, as its manifest describes it.

    Attributes:
        step: the step after which the state was taken.
        path: the folder.
        reason: why it was saved (``interval``, ``risk``, ``signal``, ...).
        stable: read back, finite and followed by healthy steps.
        time: when it was saved, unix seconds.
        abandoned: a state that a treatment discarded, kept for a person: it is never stable, and
            nothing starts from it unless asked for by step.
        meta: the caller's own values; NaN and infinities are allowed.
        bytes: total size of the state's files.
        files: name within the folder (with ``/``) → size and checksum.
        versions: of Python, torch and this package.
    """

    step: int
    path: Path
    reason: str = ""
    stable: bool = False
    abandoned: bool = False
    time: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    bytes: int = 0
    files: Mapping[str, FileSum] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def to_manifest(checkpoint: Checkpoint) -> bytes:
    """Returns the text of ``manifest.json``, with a checksum of its own."""
    body = {
        "format": _FORMAT,
        "step": checkpoint.step,
        "stable": checkpoint.stable,
        "reason": checkpoint.reason,
        "time": checkpoint.time,
        "versions": plain(checkpoint.versions),
        "files": {name: plain(file) for name, file in sorted(checkpoint.files.items())},
        "meta": plain(checkpoint.meta),
    }
    if checkpoint.abandoned:
        body["abandoned"] = True
    return (json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n").encode()


def from_manifest(path: Path, data: bytes) -> Checkpoint:
    """Returns the checkpoint in the folder `path` whose manifest holds `data`.

    Raises:
        CheckpointDamaged: `data` is not what `to_manifest` returned, or belongs to another folder.
    """
    try:
        body = parse_json(data)
        stated = body.pop("checksum")
        if body["format"] != _FORMAT:
            raise ValueError(f"unknown format {str(body['format'])[:60]!r}")
        if stated != _checksum(body):
            raise ValueError("its own checksum is wrong")
        files = {
            str(name): FileSum(bytes=int(file["bytes"]), xxh3=str(file["xxh3"]))
            for name, file in body["files"].items()
        }
        checkpoint = Checkpoint(
            step=int(body["step"]),
            path=path,
            reason=str(body["reason"]),
            stable=body["stable"] is True,
            abandoned=body.get("abandoned") is True,
            time=float(body["time"]),
            meta=body["meta"],
            bytes=sum(file.bytes for file in files.values()),
            files=files,
            versions=body["versions"],
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointDamaged(f"{path / MANIFEST}: damaged ({what}): {_HELP}") from error
    if path.name != folder_name(checkpoint.step):
        raise CheckpointDamaged(
            f"{path}: its manifest is that of step {checkpoint.step}: "
            f"rename the folder back to {folder_name(checkpoint.step)}"
        )
    return checkpoint


def folder_name(step: int) -> str:
    return f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """Returns the step of a checkpoint folder's name, None for any other name."""
    digits = name.removeprefix("step_")
    if digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) if folder_name(int(digits)) == name else None


def _checksum(body: Mapping[str, Any]) -> str:
    """Checksum of the content without white space: keys sorted, floats as `repr` writes them."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode()))
