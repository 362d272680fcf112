"""One parsed file: its tree, its scopes, and what must be true where a node runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from supervisor.source_check.finding import Risk
from supervisor.source_check.scope import SCOPE_NODES, Assignment, Function, Names, Scope

Node = TypeVar("Node", bound=ast.AST)
Result = TypeVar("Result")
Fact = tuple[str, bool]
"""The text of a condition, and whether it held."""

_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def kept_for_file(
    function: Callable[[Source, Node], Result],
) -> Callable[[Source, Node], Result]:
    """Caches the answer to a question about one node of a file."""
    return kept_meanwhile(None)(function)


def kept_meanwhile(
    nothing: Any,
) -> Callable[[Callable[[Source, Node], Result]], Callable[[Source, Node], Result]]:
    """Like ``kept_for_file``, with an answer for a question that leads back to itself."""

    def guard(function: Callable[[Source, Node], Result]) -> Callable[[Source, Node], Result]:
        @wraps(function)
        def answer(source: Source, node: Node) -> Result:
            key = (answer, node)
            if key not in source.kept:
                source.kept[key] = nothing
                source.kept[key] = function(source, node)
            result: Result = source.kept[key]
            return result

        return answer

    return guard


class Source:
    """A file that parsed, with the questions that rules ask of it."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self._parents: dict[ast.AST, ast.AST] = {}
        self._spans: dict[ast.AST, tuple[int, int]] = {}
        self._index(self.tree)
        self.names = Names(self.nodes)
        functions = [node for node in self._spans if isinstance(node, SCOPE_NODES)]
        self.scopes = tuple(Scope(node) for node in functions)
        self._scope_of = {scope.node: scope for scope in self.scopes}
        self._assignments: dict[str, list[tuple[Scope, Assignment]]] = {}
        for scope in self.scopes:
            for assignment in scope.every_assignment():
                self._assignments.setdefault(assignment.key, []).append((scope, assignment))
        self._facts: dict[ast.AST, frozenset[Fact]] = {}
        self.kept: dict[tuple[object, ast.AST], Any] = {}

    def _index(self, node: ast.AST) -> None:
        """Numbers the nodes depth first, so that "is inside" is a comparison of two numbers."""
        first = len(self._spans)
        self._spans[node] = (first, first)
        for child in ast.iter_child_nodes(node):
            self._parents[child] = node
            self._index(child)
        self._spans[node] = (first, len(self._spans))

    @property
    def nodes(self) -> Iterable[ast.AST]:
        """Every node of the file."""
        return self._spans.keys()

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Returns the node around ``node``, None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields parent, grandparent ... up to the module, across functions and classes."""
        parent = self._parents.get(node)
        while parent is not None:
            yield parent
            parent = self._parents.get(parent)

    def ancestors_in_scope(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the ancestors that belong to the same function (or to the module's top)."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, SCOPE_NODES):
                return
            yield ancestor

    def scope_of(self, node: ast.AST) -> Scope:
        """Returns the scope in which ``node`` runs."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, SCOPE_NODES):
                return self._scope_of[ancestor]
        return self._scope_of[self.tree]

    def scope_for(self, function: Function) -> Scope:
        """Returns the scope that ``function`` opens."""
        return self._scope_of[function]

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Returns the innermost class around ``node``."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, ast.ClassDef):
                return ancestor
        return None

    def all(self, kind: type[Node]) -> Iterator[tuple[Scope, Node]]:
        """Yields every node of one kind with its scope, in source order within a scope."""
        for scope in self.scopes:
            for node in scope.all(kind):
                yield scope, node

    def assignments(self, key: str) -> list[tuple[Scope, Assignment]]:
        """Returns every binding of ``key`` in the file, with its scope."""
        return self._assignments.get(key, [])

    def loops(self, node: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
        """Returns the loops around ``node`` in its function, innermost first."""
        found: list[ast.For | ast.AsyncFor | ast.While] = []
        child = node
        for ancestor in self.ancestors_in_scope(node):
            if isinstance(ancestor, (ast.For, ast.AsyncFor, ast.While)) and child in ancestor.body:
                found.append(ancestor)
            child = ancestor
        return found

    def is_inside(self, node: ast.AST, outer: ast.AST) -> bool:
        """Is ``node`` somewhere below ``outer``?"""
        inner_span, outer_span = self._spans.get(node), self._spans.get(outer)
        if inner_span is None or outer_span is None:
            return False
        return outer_span[0] < inner_span[0] < outer_span[1]

    def facts(self, node: ast.AST) -> frozenset[Fact]:
        """Returns the conditions that hold whenever ``node`` runs, within its function."""
        if node not in self._facts:
            facts: set[Fact] = set()
            child = node
            for ancestor in self.ancestors_in_scope(node):
                facts |= _facts_from_parent(ancestor, child)
                child = ancestor
            parent = self._parents.get(child)
            if parent is not None:
                facts |= _facts_from_parent(parent, child)
            self._facts[node] = frozenset(facts)
        return self._facts[node]

    def can_meet(self, first: ast.AST, second: ast.AST) -> bool:
        """Can both run in one pass through their function, or do their conditions exclude it?"""
        return not contradicts(self.facts(first), self.facts(second))

    def is_sure(self, first: ast.AST, second: ast.AST) -> bool:
        """Did ``first`` run whenever ``second``, further down, runs?"""
        return self.facts(first) <= self.facts(second)

    def functions_named(self, name: str) -> list[Function]:
        """Returns the functions and methods of this file that are called ``name``."""
        found: list[Function] = []
        for scope in self.scopes:
            node = scope.node
            if not isinstance(node, (ast.Module, ast.Lambda)) and node.name == name:
                found.append(node)
        return found


def _facts_from_parent(parent: ast.AST, child: ast.AST) -> set[Fact]:
    facts: set[Fact] = set()
    if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
        body = parent.body if isinstance(parent.body, list) else [parent.body]
        facts |= facts_of_test(parent.test, held=any(child is node for node in body))
    if isinstance(parent, ast.ExceptHandler):
        facts.add((f"except at line {parent.lineno}", True))
    if isinstance(parent, ast.Try) and child in parent.orelse:
        facts |= {(f"except at line {handler.lineno}", False) for handler in parent.handlers}
    if isinstance(child, ast.stmt):
        facts |= _facts_from_earlier_exits(parent, child)
    return facts


def _facts_from_earlier_exits(parent: ast.AST, child: ast.stmt) -> set[Fact]:
    """Facts from each ``if test: ...; continue`` before ``child`` in its block."""
    facts: set[Fact] = set()
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        for statement in block[: block.index(child)]:
            if isinstance(statement, ast.If):
                if isinstance(statement.body[-1], _JUMPS):
                    facts |= facts_of_test(statement.test, held=False)
                elif statement.orelse and isinstance(statement.orelse[-1], _JUMPS):
                    facts |= facts_of_test(statement.test, held=True)
            elif isinstance(statement, ast.Try):
                facts |= {
                    (f"except at line {handler.lineno}", False)
                    for handler in statement.handlers
                    if isinstance(handler.body[-1], _JUMPS)
                }
    return facts


def contradicts(facts: Set[Fact], others: Set[Fact]) -> bool:
    """Is there a condition that must hold for the ones and must not for the others?"""
    return any((text, not held) in others for text, held in facts)


def facts_of_test(test: ast.expr, *, held: bool) -> set[Fact]:
    """Returns what is known where a condition held, or did not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return facts_of_test(test.operand, held=not held)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == held:
        parts = (facts_of_test(value, held=held) for value in test.values)
        return {(ast.unparse(test), held)}.union(*parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        opposite = {ast.IsNot: ast.Is, ast.NotEq: ast.Eq, ast.NotIn: ast.In}.get(type(test.ops[0]))
        if opposite is not None:
            positive = ast.Compare(test.left, [opposite()], test.comparators)
            text, held = ast.unparse(positive), not held
            return _none_is_false(positive, text, held)
        return _none_is_false(test, ast.unparse(test), held)
    return {(ast.unparse(test), held)}


def _none_is_false(test: ast.Compare, text: str, held: bool) -> set[Fact]:
    """Treats ``x is None`` like ``not x``: both say whether there is an x."""
    comparator = test.comparators[0]
    if isinstance(test.ops[0], ast.Is) and isinstance(comparator, ast.Constant):
        if comparator.value is None:
            return {(ast.unparse(test.left), not held)}
        if isinstance(comparator.value, bool):
            return {(ast.unparse(test.left), held == comparator.value)}
    return {(text, held)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One mistake that can be recognised from source text alone.

    A rule stays silent if it is unsure: a false warning costs more trust than a missed mistake.
    """

    name: str
    """In kebab case; stable, because suppression comments in users' code hold it."""
    risk: Risk
    message: str
    """What is wrong and what it does to a training."""
    fix: str
    """What to write instead."""
    find: Callable[[Source], Iterable[ast.AST]]
    """Yields the places of one file where the mistake is made."""
