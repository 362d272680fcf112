"""How many words of a function's stack are objects for sure, from its bytecode alone.

Python keeps no account of that while the function runs. But its compiler has: each instruction is
reached with one depth only, whatever way leads there, or the size of the stack could not be known.
"""

from __future__ import annotations

import dis
import inspect
import sys
from types import CodeType, FrameType

_CALLS = frozenset(("CALL", "CALL_KW", "CALL_FUNCTION_EX"))
_NOT_WENT_ON_FROM = frozenset(
    (
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"),
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    )
)
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_IS_KNOWN = (3, 11) <= sys.version_info < (3, 14) and "t" not in sys.abiflags
"""Versions whose library was gone through: 15,000 functions each, none with two depths at one place
or a deeper stack than its compiler says."""

# By the number of a code, which is kept here: the hash of a code is slow.
_known: dict[tuple[int, int], tuple[CodeType, int | None]] = {}


def sure_depth(frame: FrameType) -> int | None:
    """Returns how many of the oldest words of a function's stack are references that it owns, or
    0, while the call at which it stands goes on: without what it calls and gives to it. None where
    nobody can say."""
    code, at = frame.f_code, frame.f_lasti
    key = (id(code), at)
    if key not in _known:
        _known[key] = code, _depth(code, at) if _IS_KNOWN else None
    return _known[key][1]


def _depth(code: CodeType, at: int) -> int | None:
    instructions = list(dis.get_instructions(code))
    try:
        depths = depths_before(code, instructions)
    except (ValueError, KeyError, IndexError):
        return None
    # Behind the instruction are words that only it uses.
    place = max(n for n, one in enumerate(instructions) if one.offset <= at)
    one, depth = instructions[place], depths.get(place)
    if depth is None or max(depths.values()) > code.co_stacksize:
        return None
    if one.opname == "FOR_ITER":
        return depth
    if one.opname not in _CALLS:
        return None
    return max(0, depth + dis.stack_effect(one.opcode, one.arg) - 1)


def depths_before(code: CodeType, instructions: list[dis.Instruction]) -> dict[int, int]:
    """Returns number of an instruction → words on the stack before it, of those that are reached
    without an exception.

    Raises:
        ValueError: there are two ways to one of them with different depths.
    """
    at = {one.offset: number for number, one in enumerate(instructions)}
    is_given = code.co_flags & _GENERATORS and sys.version_info < (3, 13)
    found: dict[int, int] = {}
    waiting = [(0, 1 if is_given else 0)]
    while waiting:
        number, depth = waiting.pop()
        while number not in found:
            found[number] = depth
            one = instructions[number]
            arg = one.arg if one.opcode >= dis.HAVE_ARGUMENT else None
            if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
                jumps = dis.stack_effect(one.opcode, arg, jump=True)
                waiting.append((at[one.argval], depth + jumps))
            if one.opname in _NOT_WENT_ON_FROM:
                break
            depth += dis.stack_effect(one.opcode, arg, jump=False)
            number += 1
        if found[number] != depth or depth < 0:
            raise ValueError(f"{code.co_name}: depths {found[number]} and {depth} at {number}")
    return found
