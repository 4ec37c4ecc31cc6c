"""Bound the work of checking values by a JSON Schema.

jsonschema_rs (0.60) checks a part of a value again for each way that leads to it, unless a schema
contains itself: `anyOf` of two equal references, nested 24 times, takes half a second. To make the
error of an `anyOf` it makes those of all its branches, in 20 us each, also where a schema contains
itself. It holds the GIL all the time. So schemas are refused that have too many branches, and the
error of a value is only made where that is cheap. Numbers of an `enum` are in a hash table, floats
and objects are compared one by one, in about 1 us each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

import jsonschema_rs

from gateway.errors import FormatError

MAX_BRANCHES = 10_000  # subschemas that may look at the same part of a value
MAX_DEPTH = 5_000  # of subschemas in each other; compiling takes the square of it
MAX_STEPS = 5_000_000  # branches and compared values, times parts of a value: 0.5 s
MAX_ERROR_STEPS = 100_000
MAX_ERROR_ALTERNATIVES = 2_000  # steps in branches of `anyOf` and `oneOf`: 40 ms
MAX_ERROR_CHARS = 20_000_000  # of the value in the errors of all alternatives
_MAX_MEASURED = 20_000  # subschemas and parts of a value that are measured together
# In steps: values of `enum` and `const` are compared one by one, unless they are in a hash table.
_HASHED_STEPS = 0.1
_FLOAT_STEPS = 10.0  # to compare a float with a number
_COMPARED_STEPS = 2.0  # of other parts of objects and arrays
_PATTERN_STEPS = 1 / 64  # to match a character

_REFERENCES = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_KINDS = {  # of the parts of a node, by their keywords
    **dict.fromkeys(("anyOf", "oneOf"), "alternatives"),
    **dict.fromkeys(
        ("allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"), "same_place"
    ),
    **dict.fromkeys(
        (
            "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
            "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
        ),
        "members",
    ),
}  # fmt: skip
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MAPS = frozenset(("dependentSchemas", "dependencies", "patternProperties"))


class Work(NamedTuple):
    """What a subschema and its parts do with the same part of a value.

    Attributes:
        branches: Subschemas that look at it.
        compared: Steps to compare it with the values of `enum` and `const`, and to look up names.
        numbers: Integers of an `enum`, each of which is compared with it if it is a float.
        patterns: Regular expressions that are matched with it.
    """

    branches: int = 0
    compared: float = 0.0
    numbers: int = 0
    patterns: int = 0

    def join(self, others: Iterable[Work]) -> Work:
        return Work(*map(sum, zip(self, *others, strict=True)))

    def count_steps(self, parts: int, floats: int, chars: int) -> float:
        """Return the steps of checking a value with so many parts, of which some are floats."""
        steps = parts * (self.branches + self.compared)
        return steps + _FLOAT_STEPS * floats * self.numbers + _PATTERN_STEPS * chars * self.patterns


class SchemaWork:
    """The subschemas of a schema and its references, and what checking values by them takes."""

    def __init__(
        self, schema: Any, base: str, draft: int | None, retriever: Callable[[str], Any]
    ) -> None:
        """Follow all references; raises FormatError if there are too many branches.

        Raises ValueError if a reference is missing.
        """
        self._root = _Node()
        self._work = Work(1)
        self._is_simple = True  # no errors of alternatives, and no subschema in itself
        resolver = _Resolver(schema, base, draft, retriever)
        pending = [(self._root, schema, base)]
        while pending:
            pending += _expand(*pending.pop(), resolver)
        self._count_branches()

    def check_size(self, value: Any, text: bytes) -> None:
        """Raise FormatError for a value, with its text, that takes too long to be checked."""
        parts = text.count(b",") + text.count(b":") + 1
        if self._work.count_steps(parts, parts, len(text)) <= MAX_STEPS:
            return
        parts, floats = _count_parts(value)  # strings may have such characters, too
        if self._work.count_steps(parts, floats, len(text)) > MAX_STEPS:
            branches = self._work.branches + round(self._work.compared)
            problem = f"the value has {parts} parts, and its JSON Schema {branches} branches"
            if self._work.patterns:
                problem += f" and {self._work.patterns} patterns"
            raise FormatError(f"{problem}: too much to be checked; divide the value")

    def has_cheap_error(self, value: Any, size: int) -> bool:
        """Return whether the error of an invalid value of so many bytes may be made."""
        if self._is_simple:
            return True
        try:
            steps, alternatives = _measure(self._root, value, {})
        except RecursionError:
            return False
        return (
            steps <= MAX_ERROR_STEPS
            and alternatives <= MAX_ERROR_ALTERNATIVES
            and alternatives * size <= MAX_ERROR_CHARS
        )

    def _count_branches(self) -> None:
        """Count from the leaves to the root, without recursion. A node within itself counts as one.

        Of properties, only the one with the most branches counts: each is another part.
        """
        stack = [self._root]
        while stack:
            node = stack[-1]
            if node.work is None:
                node.work = Work()  # has begun
                stack += [part for part in node.iter_parts() if part.work is None]
                continue
            stack.pop()
            if node.work.branches:
                continue
            parts = list(node.iter_parts())
            if node.alternatives or not all(part.work and part.work.branches for part in parts):
                self._is_simple = False
            properties = [part.count_as_part() for part in node.properties.values()]
            largest = Work(*map(max, zip(*properties, strict=True))) if properties else Work()
            others = [*node.alternatives, *node.same_place, *node.members]
            node.work = node.own_work.join([largest, *(part.count_as_part() for part in others)])
            node.depth = 1 + max((part.depth for part in parts), default=0)
            if node.work.branches > MAX_BRANCHES:
                problem = f"more than {MAX_BRANCHES} branches look at the same part of a value"
                raise FormatError(f"the JSON Schema cannot be used: {problem}; simplify it")
            if node.depth > MAX_DEPTH:
                problem = f"its parts are nested more than {MAX_DEPTH} deep"
                raise FormatError(f"the JSON Schema cannot be used: {problem}; flatten it")
        self._work = self._root.count_as_part()
        if self._is_simple:
            self._root = _Node()  # the others are not needed


class _Node:
    """A subschema, by what of a value its parts look at.

    `work` is None before it is counted, and empty while its parts are.
    """

    __slots__ = (
        "alternatives", "depth", "members", "own_work", "properties", "same_place", "work",
    )  # fmt: skip

    def __init__(self) -> None:
        self.alternatives: list[_Node] = []
        self.same_place: list[_Node] = []
        self.members: list[_Node] = []
        self.properties: dict[str, _Node] = {}
        self.own_work = Work(1)
        self.work: Work | None = None
        self.depth = 0

    def count_as_part(self) -> Work:
        return self.work if self.work is not None and self.work.branches else Work(1)

    def iter_parts(self) -> Iterator[_Node]:
        yield from self.alternatives
        yield from self.same_place
        yield from self.members
        yield from self.properties.values()


class _Resolver:
    """The nodes of references, each of which is expanded once."""

    def __init__(
        self, schema: Any, base: str, draft: int | None, retriever: Callable[[str], Any]
    ) -> None:
        self._registry = jsonschema_rs.Registry([(base, schema)], draft=draft, retriever=retriever)
        self._nodes: dict[str, _Node] = {}
        self._documents: dict[str, Any] = {}

    def resolve(
        self, reference: str, base: str
    ) -> tuple[_Node | None, list[tuple[_Node, Any, str]]]:
        """Return the node of a reference, None if it leads nowhere, and what is to be expanded."""
        uri = _join_uri(base, reference)
        if (known := self._nodes.get(uri)) is not None:
            return known, []
        try:
            schema, found_base = self._look_up(*uri.partition("#")[::2])
        except (jsonschema_rs.ReferencingError, ValueError, LookupError, TypeError):
            return None, []
        node = self._nodes[uri] = _Node()
        return node, [(node, schema, found_base)]

    def _look_up(self, document_uri: str, fragment: str) -> tuple[Any, str]:
        resolver = self._registry.resolver(document_uri)
        if fragment and not fragment.startswith("/"):
            found = resolver.lookup(f"#{fragment}")
            return found.contents, found.resolver.base_uri
        # Looking a pointer up would copy what it leads to, which may be nearly all of the document.
        if document_uri not in self._documents:
            self._documents[document_uri] = resolver.lookup("").contents
        schema, base = self._documents[document_uri], document_uri
        for step in fragment.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict):
                base = _get_base(schema, base)
            schema = schema[int(name) if isinstance(schema, list) else name]
        return schema, base


def _expand(
    node: _Node, schema: Any, base: str, resolver: _Resolver
) -> Iterator[tuple[_Node, Any, str]]:
    """Give a node its parts, and yield those that are to be expanded, too."""
    if not isinstance(schema, Mapping):
        return
    base = _get_base(schema, base)
    for keyword, content in schema.items():
        if keyword in _REFERENCES and isinstance(content, str):
            target, unexpanded = resolver.resolve(content, base)
            if target is not None:
                node.same_place.append(target)
            yield from unexpanded
            continue
        if keyword == "properties" and isinstance(content, dict):
            for name, subschema in content.items():
                part = node.properties[name] = _Node()
                yield part, subschema, base
            continue
        node.own_work = node.own_work.join([_measure_own_work(keyword, content)])
        if (kind := _KINDS.get(keyword)) is not None:
            parts = getattr(node, kind)
            for subschema in _list_subschemas(keyword, content):
                part = _Node()
                parts.append(part)
                yield part, subschema, base


def _measure_own_work(keyword: str, content: Any) -> Work:
    if keyword == "pattern":
        return Work(patterns=1)
    if keyword == "patternProperties" and isinstance(content, dict):
        return Work(patterns=len(content))
    if keyword == "dependentRequired" and isinstance(content, dict):
        return Work(compared=_HASHED_STEPS * len(content))  # each name is looked up in an object
    values = content if keyword == "enum" and isinstance(content, list) else []
    if keyword == "const" and isinstance(content, (dict, list)):
        values = [content]
    compared = sum(map(_count_comparison_steps, values))
    return Work(compared=compared, numbers=sum(type(value) is int for value in values))


def _count_comparison_steps(value: Any) -> float:
    if not isinstance(value, (float, dict, list)):
        return _HASHED_STEPS
    parts, floats = _count_parts(value)
    return parts * _COMPARED_STEPS + floats * _FLOAT_STEPS


def _get_base(schema: Mapping[str, Any], base: str) -> str:
    for keyword in ("$id", "id"):
        if isinstance(own := schema.get(keyword), str) and not own.startswith("#"):
            return _join_uri(base, own)
    return base


def _join_uri(base: str, reference: str) -> str:
    """Resolve a reference as `urljoin` does, which does so for the schemes alone that it knows."""
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    if _SCHEME.match(reference):
        return reference
    scheme, _, rest = base.partition(":")
    return scheme + urljoin(f"http:{rest}", reference).removeprefix("http")


def _list_subschemas(keyword: str, content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    if isinstance(content, dict) and keyword in _MAPS:
        return list(content.values())
    return [] if content is None else [content]


def _count_parts(value: Any) -> tuple[int, int]:
    """Return the number of parts of a value, and how many of them are floats."""
    count, floats, pending = 0, 0, [value]
    while pending:
        content = pending.pop()
        count += 1
        if isinstance(content, dict):
            pending += content.values()
        elif isinstance(content, list):
            pending += content
        elif isinstance(content, float):
            floats += 1
    return count, floats


def _measure(
    node: _Node, value: Any, measured: dict[tuple[int, int], tuple[int, int]]
) -> tuple[int, int]:
    """Return the steps of checking a value, and how many of them are in alternatives.

    Raises RecursionError for too many of them.
    """
    key = id(node), id(value)
    if (known := measured.get(key)) is not None:
        return known
    size = len(value) * len(node.members) if isinstance(value, (dict, list)) else 0
    if len(measured) + size > _MAX_MEASURED:
        raise RecursionError
    measured[key] = 1, 0
    steps, alternatives = node.own_work.branches + int(node.own_work.compared), 0
    for part in node.alternatives:
        more, _ = _measure(part, value, measured)
        steps, alternatives = steps + more, alternatives + more
    looks = [(part, value) for part in node.same_place]
    if isinstance(value, dict):
        for name, member in value.items():
            looks += [(part, member) for part in node.members]
            if name in node.properties:
                looks.append((node.properties[name], member))
    elif isinstance(value, list):
        looks += [(part, member) for member in value for part in node.members]
    for part, member in looks:
        more, more_alternatives = _measure(part, member, measured)
        steps, alternatives = steps + more, alternatives + more_alternatives
    measured[key] = steps, alternatives
    return steps, alternatives
