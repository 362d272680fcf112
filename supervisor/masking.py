"""Hides secrets in whatever is written, printed or sent around."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

HIDDEN = "***"

# A long word (a sequence, a base64 block) is looked at once: each pattern begins where a word does,
# and a lookahead, which is not tried again, says whether the word holds what makes it a secret.
_BEGINS = r"(?<![\w-])"
_NAMES = (
    r"secret|passw(?:or)?d|passphrase|passwd|credentials?|authorization|cookie"
    r"|(?:api|access|account|auth|aws|azure|client|comet|encryption|hf|license|neptune|openai"
    r"|private|service|signing|ssh|storage|wandb)[_-]?key"
)
_SHORT = r"(?<![A-Za-z0-9])(?:pw|pwd_|auth|dsn)(?![A-Za-z0-9])"
_NAME = rf"(?:{_BEGINS}(?=[\w-]*(?:{_NAMES}))[\w-]+|{_SHORT})"
# A "token" is a piece of text, too: what is counted (token: 5, tokens per second) is no secret.
_TOKEN = r"token(?!s|i)"
_OPTION = rf"{_NAMES}|{_TOKEN}|(?<=-)(?:pw|pwd_|auth|dsn)(?![\w-])|[_-]key(?![\w-])"
_QUOTED = r"\"[^\"]*\"|'[^']*'"
_VALUE = rf"(?:\*\*\*|(?:(?:Bearer|Basic|Token)\s+)?(?:{_QUOTED}|[^\s'\",;]+))"
_COUNT = r"(?!\d{1,9}(?:\.\d+)?(?![^\s,;)\]}]))"

_SECRETS = (
    # scheme://user:PASSWORD@host
    re.compile(r"((?<!\w)\w+://[^\s:/@]+:)[^\s@/]+(?=@)"),
    # --wandb-key VALUE, --token VALUE, --pw VALUE: an option and the word behind it
    re.compile(rf"(?i)({_BEGINS}\w*-(?=[\w-]*(?:{_OPTION}))[\w-]+\s+)(?!-){_VALUE}"),
    re.compile(rf"(?i)({_BEGINS}\w*-[\w-]*[_-]key=){_VALUE}"),
    # name=VALUE, name: VALUE, "name": "VALUE"
    re.compile(rf"(?i)({_NAME}['\"]?\s*[=:]\s*){_VALUE}"),
    re.compile(
        rf"(?i)({_BEGINS}(?=[\w-]*{_TOKEN})[\w-]+['\"]?\s*[=:]\s*){_COUNT}"
        rf"(?:{_QUOTED}|[^\s'\",;]{{4,}})"
    ),
    re.compile(r"(?i)(\bBearer\s+)[\w.~+/=-]{4,}"),
    # tokens that are known by how they begin
    re.compile(
        r"()\b(?:hf_|sk-|sk_live_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza"
        r"|dapi|npm_|pypi-)[\w-]{10,}"
    ),
    # a JSON web token
    re.compile(
        rf"({_BEGINS}(?=[\w-]+\.[\w-]{{8,}}\.[\w-]{{4,}})[\w-]*?)\beyJ[\w-]{{8,}}"
        r"\.[\w-]{8,}\.[\w-]{4,}"
    ),
)
"""The first group of each stays."""


def mask_secrets(text: str) -> str:
    """Returns `text` with whatever looks like a password, key or token replaced by ``***``."""
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def mask_command(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, those masked that are or hold a secret."""
    masked: list[str] = []
    for word in words:
        option = masked[-1] if masked else ""
        is_named = not word.startswith("-") and mask_secrets(f"{option} word") != f"{option} word"
        masked.append(HIDDEN if is_named else mask_secrets(word))
    return masked


def mask_all(value: T) -> T:
    """Returns `value` with all of its texts masked: records, mappings, lists and tuples included.

    Keys stay what they are. The value of a key that names a secret is masked whole.
    """
    masked: Any = _masked(value)
    return masked  # type: ignore[no-any-return]


def _masked(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value  # one of our own words
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, Mapping):
        return {key: _masked_under(key, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        is_command = all(isinstance(item, str) for item in value)
        items = mask_command(value) if is_command else [_masked(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _masked(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _masked_under(key: Any, item: Any) -> Any:
    if isinstance(key, str) and isinstance(item, str) and not isinstance(item, enum.Enum):
        pair = f"{key}={item}" if " " not in item else f"{key}='{item}'"
        if mask_secrets(pair) == f"{key}={HIDDEN}":
            return HIDDEN
    return _masked(item)
