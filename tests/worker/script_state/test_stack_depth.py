"""How deep a function's stack is, is known from its bytecode, and what lies beyond is not read."""

from __future__ import annotations

import argparse
import dis
import gc
import json.decoder
import sys
import tokenize
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
import torch
from torch.optim import Adam

from supervisor.worker.script_state.stack_depth import depths_before
from supervisor.worker.script_state.user_frames import held_by_blocks

IS_KNOWN = (3, 11) <= sys.version_info < (3, 14) and "t" not in sys.abiflags
pytestmark = pytest.mark.skipif(not IS_KNOWN, reason="no such stack")


def codes_of(module: ModuleType) -> Iterator[CodeType]:
    with open(str(module.__file__)) as file:
        waiting = [compile(file.read(), str(module.__file__), "exec")]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]


@pytest.mark.parametrize("module", [argparse, json.decoder, tokenize, sys.modules[Adam.__module__]])
def test_no_stack_is_deeper_than_its_compiler_says(module: ModuleType) -> None:
    for code in codes_of(module):
        depths = depths_before(code, list(dis.get_instructions(code)))

        assert max(depths.values()) <= code.co_stacksize, code


def batches() -> Iterator[torch.Tensor]:
    values = torch.arange(3.0)
    yield from values


def held(of: FrameType) -> dict[str, Any]:
    return dict(held_by_blocks([("0:loop", of)], {"": {}}))


def forgets(first: object, frame: FrameType) -> dict[str, Any]:
    del first
    gc.collect()
    return held(frame)


def test_what_a_loop_goes_over_is_found_without_all_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("asked for all objects"))

    def loop() -> list[dict[str, Any]]:
        return_value = []
        for _ in batches():
            return_value.append(held(sys._getframe()))
        return return_value

    found = loop()

    assert [list(one) for one in found] == [["0:loop 0"]] * 3


def test_an_argument_that_the_called_function_has_dropped_is_not_read() -> None:
    def loop() -> list[dict[str, Any]]:
        return_value = []
        for _ in batches():
            return_value.append(forgets(batches(), sys._getframe()))
        return return_value

    found = loop()

    assert [list(one) for one in found] == [["0:loop 0"]] * 3
