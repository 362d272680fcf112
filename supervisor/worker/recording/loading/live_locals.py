"""What a suspended generator goes on from beside its loops: variables it still reads."""

from __future__ import annotations

import dis
import functools
import re
import types
from collections.abc import Iterator

_OF_LOCALS = re.compile(r"(LOAD|STORE|DELETE)_FAST")
_READS_ALL = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})
_ENDING = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_PASSED = frozenset({"RESUME", "NOP", "END_SEND", "YIELD_FROM"})
_ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


def live_names(frame: types.FrameType) -> frozenset[str]:
    """Returns the variables whose values can still matter to a suspended frame.

    What is assigned before it is read on every way from here is not among them. Variables that
    inner functions share always are.
    """
    return _live_at(frame.f_code, frame.f_lasti)


def yields_a_statement(frame: types.FrameType) -> bool:
    """Whether a suspended generator waits in a `yield` that is a statement of its own: within an
    expression it keeps more than its variables and the iterators of its loops."""
    return _follows_pop(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=256)
def _follows_pop(code: types.CodeType, place: int) -> bool:
    instructions = {one.offset: one for one in dis.get_instructions(code)}
    here = [one for offset, one in instructions.items() if offset > place]
    for _ in range(8):
        name = here[0].opname if here else ""
        if name in _PASSED:
            here.pop(0)
        elif name == "SEND" or name.startswith(_ALWAYS_JUMPS):  # `yield from` asks again
            here = [one for offset, one in instructions.items() if offset >= here[0].argval]
        else:
            return name == "POP_TOP"
    return False


@functools.lru_cache(maxsize=256)
def _live_at(code: types.CodeType, place: int) -> frozenset[str]:
    if _READS_ALL.intersection(code.co_names):
        return frozenset({*code.co_varnames, *code.co_cellvars, *code.co_freevars})
    instructions = list(dis.get_instructions(code))
    number = {one.offset: at for at, one in enumerate(instructions)}
    here = next((at for at, one in enumerate(instructions) if one.offset > place), 0)
    starts = [here, *(number[offset] for offset in _handlers(code) if offset in number)]
    live = {*code.co_cellvars, *code.co_freevars}
    for start in starts:
        for name in set(code.co_varnames) - live:
            if _is_read(instructions, number, start, name):
                live.add(name)
    return frozenset(live)


def _is_read(
    instructions: list[dis.Instruction], number: dict[int, int], start: int, name: str
) -> bool:
    """Whether a way from `start` reads the variable before it assigns it."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        at = waiting.pop()
        while at < len(instructions) and at not in seen:
            seen.add(at)
            one = instructions[at]
            effect = _effect(one, name)
            if effect:
                if effect != "STORE":
                    return True
                break
            if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
                waiting.append(number.get(one.argval, len(instructions)))
                if one.opname.startswith(_ALWAYS_JUMPS):
                    break
            if one.opname in _ENDING:
                break
            at += 1
    return False


def _effect(one: dis.Instruction, name: str) -> str:
    """What an instruction does first to a variable: LOAD, STORE, DELETE or nothing."""
    parts = _OF_LOCALS.findall(one.opname)
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,) * len(parts)
    return next((part for part, own in zip(parts, names, strict=False) if own == name), "")


def _handlers(code: types.CodeType) -> Iterator[int]:
    """Where exceptions are caught, ``with`` and ``finally`` included: a yield may raise."""
    for one in dis.Bytecode(code):
        if one.opname.startswith("SETUP_"):  # Python 3.10
            yield one.argval
    for entry in getattr(dis.Bytecode(code), "exception_entries", None) or ():
        yield entry.target
