"""Comments that silence a rule where they stand."""

from __future__ import annotations

import io
import re
import tokenize

_OURS = re.compile(r"#\s*supervisor:\s*ignore(?:\[([\w\-,\s]*)\])?", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa(?::\s*([\w\-]+(?:[,\s]+[\w\-]+)*))?", re.IGNORECASE)
_EVERYTHING = frozenset({"*"})


class Suppressions:
    """Which rules the comments of one file silence, line by line.

    ``# supervisor: ignore[rule, rule]`` and ``# noqa: rule`` silence the named rules,
    ``# supervisor: ignore`` and ``# noqa`` all of them; on the line of the finding, on any other
    line of the same expression, or on a line of its own right above.
    """

    def __init__(self, text: str) -> None:
        self._rules: dict[int, frozenset[str]] = {}
        if not (_OURS.search(text) or _NOQA.search(text)):
            return
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    alone = not token.line[: token.start[1]].strip()
                    self._add(token.start[0] + alone, token.string)
        except (tokenize.TokenError, SyntaxError):
            return

    def _add(self, line: int, comment: str) -> None:
        found = _OURS.search(comment) or _NOQA.search(comment)
        if found is None:
            return
        named = frozenset(name.lower() for name in re.split(r"[,\s]+", found[1] or "") if name)
        self._rules[line] = self._rules.get(line, frozenset()) | (named or _EVERYTHING)

    def silence(self, rule: str, first_line: int, last_line: int) -> bool:
        """Is ``rule`` silenced for an expression that spans these lines?"""
        for line in range(first_line, last_line + 1):
            if self._rules.get(line, frozenset()) & {rule, "*"}:
                return True
        return False
