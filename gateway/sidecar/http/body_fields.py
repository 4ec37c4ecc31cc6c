"""Correct integers in the bodies of requests, and find fields that their schemas do not have.

Both follow the schemas of a body's members, which must not refer to themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from gateway.config.types.substitution import find_closest

INT64_BOUND = 2.0**63
_BRANCHES = ("allOf", "anyOf", "oneOf")

# Takes a valid value, changes dicts and lists in place, and returns what the value is now.
Normalizer: TypeAlias = Callable[[Any], Any]


def build_normalizer(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Normalizer | None:
    """Return the function that turns integers written as 1.0 into integers, or None for no integer.

    To JSON Schema a number without a fraction is an integer. To Python it is a float, which is no
    index and no integer of Kafka's protocol. Valid values are changed in place where their schema
    wants an integer, and nowhere else: keys and values of records stay untouched.

    The schema must not refer to itself: references are followed while it is built.
    """
    schema = resolve_reference(document, schema)
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    is_integer = ("integer" in kinds and "number" not in kinds) or schema.get("multipleOf") == 1
    members = [
        (name, normalizer)
        for name, member in schema.get("properties", {}).items()
        if (normalizer := build_normalizer(document, member)) is not None
    ]
    item = build_normalizer(document, schema["items"]) if "items" in schema else None
    # All branches of anyOf and oneOf are applied, also those that do not hold for the value: which
    # one holds is not known here, and a whole number is the same number in each of them.
    branches = [
        normalizer
        for keyword in _BRANCHES
        for branch in schema.get(keyword, ())
        if (normalizer := build_normalizer(document, branch)) is not None
    ]
    if not (members or item or branches):
        return _to_integer if is_integer else None

    def normalize(value: Any) -> Any:
        if is_integer:
            value = _to_integer(value)
        if members and isinstance(value, dict):
            for name, normalizer in members:
                if name in value:
                    value[name] = normalizer(value[name])
        elif item is not None and isinstance(value, list):
            for index, element in enumerate(value):
                value[index] = item(element)
        for branch in branches:
            value = branch(value)
        return value

    return normalize


def resolve_reference(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a local reference (`#/components/...`); any other schema is returned itself."""
    target: Any = schema
    while isinstance(target, Mapping) and "$ref" in target:
        steps = str(target["$ref"]).removeprefix("#/").split("/")
        target = document
        for step in steps:
            target = target[step.replace("~1", "/").replace("~0", "~")]  # RFC 6901 section 4
    assert isinstance(target, Mapping)
    return target


def _to_integer(value: Any) -> Any:
    """Convert a whole float to an integer within 64 bits; orjson writes no larger ones."""
    if isinstance(value, float) and value.is_integer() and abs(value) < INT64_BOUND:
        return int(value)
    return value


READ_RECORD_FIELDS = frozenset(
    ("topic", "key", "value", "partition", "offset", "timestamp", "headers", "error")
)
"""The fields of `ConsumerRecord`."""

ALIASES_KEYWORD = "x-also-written"
"""The keyword of a property's schema with other names that clients use for it."""

MIN_SIMILARITY = 0.8  # as difflib's ratio: `partiton` is near, other words are not
MAX_UNKNOWN_NAMES = 20  # that are looked at in one object: each is compared with all known names


class UnknownField(NamedTuple):
    """A field at `path` that a schema does not have. `known` is in the order of the schema."""

    path: Sequence[str | int]
    closest: str | None
    known: Sequence[str]


class FieldNames:
    """The names of the fields that a schema has, and of those in its members.

    An ignored field costs its sender minutes: `instanceId` in place of `name` creates an instance
    of another name. So unknown fields are refused with the nearest known name, in all objects of a
    body, except:

    - Fields that are null, because some clients write all members of a class.
    - Fields of a record that was read, in the elements of a list: it may be sent back as a record
      to write, or as an offset to commit.
    - All fields of schemas with `additionalProperties`, such as lists of what this API returned. In
      these, only a field of the body itself is refused, if its name is nearly a known one. Of an
      object that has nothing else, such as the headers by their names, each member is looked at.

    `Validator` creates one for each schema. The schema must not refer to itself. Names in `ignored`
    are let through by a schema that has some of them.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        schema: Mapping[str, Any],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        properties, items, others = _collect_members(document, schema)
        self._accepts_all = others is not False
        self._listed = tuple(properties)
        self._known = frozenset(properties)
        self._ignored = ignored if ignored & self._known else frozenset[str]()
        self._aliases = {
            alias: name
            for name, member in properties.items()
            for alias in resolve_reference(document, member).get(ALIASES_KEYWORD, ())
        }
        members = {name: FieldNames(document, each) for name, each in properties.items()}
        self._members = {name: each for name, each in members.items() if each.has_names}
        self._items = None if items is None else FieldNames(document, items, READ_RECORD_FIELDS)
        self._others: FieldNames | None = None
        if isinstance(others, Mapping) and not properties:
            self._others = FieldNames(document, others)

    @property
    def has_names(self) -> bool:
        nested = (self._items, self._others)
        return bool(self._known) or any(names.has_names for names in nested if names is not None)

    def find_unknown(self, value: Any) -> UnknownField | None:
        if not self._accepts_all:
            return self._find_any(value, ())
        if isinstance(value, dict) and self._known and not value.keys() <= self._known:
            for name in iter_unknown_names(value, self._known):
                closest = find_closest(name, self._known, MIN_SIMILARITY)
                if closest and closest not in value:
                    return UnknownField((name,), closest, self._listed)
        return None

    def _find_any(self, value: Any, path: tuple[str | int, ...]) -> UnknownField | None:
        if self._accepts_all:
            if self._others is not None and self._others.has_names and isinstance(value, dict):
                for name, member in value.items():
                    if found := self._others._find_any(member, (*path, name)):
                        return found
            return None
        if isinstance(value, dict) and self._known:
            if not value.keys() <= self._known:
                for name, member in value.items():
                    if member is not None and name not in self._known | self._ignored:
                        closest = self._aliases.get(name) or find_closest(name, self._known)
                        return UnknownField((*path, name), closest, self._listed)
            for name, names in self._members.items():
                if name in value and (found := names._find_any(value[name], (*path, name))):
                    return found
        elif isinstance(value, list) and self._items is not None and self._items.has_names:
            known = self._items._known - self._items._members.keys()
            for index, element in enumerate(value):
                if type(element) is dict and element.keys() <= known:
                    continue  # nearly all records, without a call for each
                if found := self._items._find_any(element, (*path, index)):
                    return found
        return None


def iter_unknown_names(names: Iterable[str], known: frozenset[str]) -> Iterator[str]:
    return islice((name for name in names if name not in known), MAX_UNKNOWN_NAMES)


def _collect_members(
    document: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any] | None, Any]:
    """Return the properties of a schema and its branches, its items, and `additionalProperties`."""
    schema = resolve_reference(document, schema)
    properties = dict(schema.get("properties", {}))
    items = schema.get("items")
    others = schema.get("additionalProperties", False)
    for keyword in _BRANCHES:
        for branch in schema.get(keyword, ()):
            more, branch_items, branch_others = _collect_members(document, branch)
            properties = {**more, **properties}
            items = items if items is not None else branch_items
            others = branch_others if others is False else others
    return properties, items, others
