"""Objects of the script are known by identity: see `supervisor.by_identity`."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from supervisor.by_identity import ByIdentity, IdentitySet

PACKAGE = Path(__file__).parents[1] / "supervisor"

HOLDS_ITS_KEYS = {
    "by_identity.py": "each look compares what lives there",
    "worker/corruption/comparison.py": "the cases of a slice live until it is added up",
    "training_state/script_state/reach.py": "what was met is kept in `objects`",
    "training_state/shared_memory_state.py": "each tensor is kept in its entry",
    "training_state/own_methods.py": "the table is torch's, asked by optimizers that live",
    "training_state/snapshot.py": "each tensor is kept in `_done`",
    "training_state/state_pickle.py": "the state that is written holds its tensors",
    "worker/corruption/normalisation_watch.py": "the mean is kept in its entry",
    "worker/regions/patches_collecting.py": "the group is kept in its entry",
    "worker/script_state/stack_temporaries.py": "the code is kept in its entry",
    "storage/run/training_places.py": "the code is kept in its entry",
    "worker/outside_draws/outside_draws.py": "the code is kept in its entry",
    "worker/loading/loading_proof.py": "the value is the entry",
    "worker/loading/fingerprint.py": "the value is the entry",
    "worker/mistakes/kinds/ranks.py": "the module is the entry",
    "worker/mistakes/evidence/loss_graph.py": "the leaf is kept in its entry",
    "worker/mistakes/kinds/gradients.py": "the suspects are kept until all is told",
}
"""Files with a table that outlives a call and is keyed by `id()`; what it is the id of lives on."""


class Hostile:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("who asks?")

    def __bool__(self) -> bool:
        raise RuntimeError("who asks?")


def test_no_table_that_outlives_a_call_is_keyed_by_the_id_of_something_that_may_die() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(_kept_tables(ast.parse(path.read_text())))
    }

    assert found == set(HOLDS_ITS_KEYS)


@pytest.mark.parametrize(
    "line",
    [
        "self.known[id(one)] = 1",
        "self.known.setdefault(id(one), 1)",
        "self.known.add((id(one), 2))",
        "key = id(one), 2\n    self.known[key] = 1",
        "self.known = {id(p): p.name for p in one}",
        "self.known |= {id(p) for p in one}",
    ],
)
def test_a_new_table_of_ids_is_seen(line: str) -> None:
    assert any(_kept_tables(ast.parse(f"def f(self, one):\n    {line}\n")))


def test_an_entry_goes_with_its_object_and_a_stale_one_is_not_taken_for_another() -> None:
    table: ByIdentity[torch.Tensor, str] = ByIdentity()
    first, second = torch.zeros(1), torch.zeros(1)
    table[first] = "first"
    table._entries[id(second)] = table._entries[id(first)]  # as if it had the same address

    assert second not in table
    assert table.get(second) is None

    table._entries.pop(id(second))
    del first
    gc.collect()

    assert len(table) == 0


def test_neither_equality_nor_hash_nor_truth_of_a_key_is_asked() -> None:
    keys = [Hostile(), Hostile(), torch.zeros(3)]
    table = IdentitySet(keys)

    table.discard(keys[0])

    assert keys[0] not in table
    assert keys[1] in table
    assert [one is key for one, key in zip(table, keys[1:], strict=True)] == [True, True]


def test_the_table_holds_neither_its_keys_nor_itself() -> None:
    gc.disable()
    try:
        value, key = torch.zeros(1), torch.zeros(1)
        held = IdentitySet([value])
        table: ByIdentity[torch.Tensor, torch.Tensor] = ByIdentity()
        table[key] = value
        del table, value  # the key lives, and has a reference with our callback

        assert len(held) == 0
    finally:
        gc.enable()


def _kept_tables(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields where an attribute is made of ids, or asked or filled by one. What is local, a call
    ends; names that a function gives to ids are followed."""
    for scope in ast.walk(tree):
        if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        ids = {
            name.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and _is_key(node.value, set())
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        aliases = {
            name.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and _is_attribute(node.value, set())
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        for node in ast.walk(scope):
            if isinstance(node, ast.Subscript):
                table, keys = node.value, [node.slice]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                table, keys = node.func.value, node.args[:1]
            elif isinstance(node, (ast.Assign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                table, keys = targets[0], [_first_of(node.value)]
            else:
                continue
            if _is_attribute(table, aliases) and any(_is_key(key, ids) for key in keys):
                yield node


def _is_attribute(node: ast.AST, aliases: set[str]) -> bool:
    return isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id in aliases)


def _first_of(node: ast.expr) -> ast.expr:
    """What a new table is keyed by."""
    if isinstance(node, ast.DictComp):
        return node.key
    return node.elt if isinstance(node, ast.SetComp) else ast.Constant(None)


def _is_key(node: ast.expr, ids: set[str]) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_is_key(item, ids) for item in node.elts)
    is_id = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "id"
    return is_id or (isinstance(node, ast.Name) and node.id in ids)
