"""Find the fields of a request's body that its schema does not have.

An ignored field costs its sender minutes: `instanceId` in place of `name` creates an instance of
another name. So unknown fields are refused with the nearest known name, in all objects of a body,
except:

- Fields that are null, because some clients write all members of a class.
- Fields of a record that was read, in the elements of a list: it may be sent back as a record to
  write, or as an offset to commit.
- All fields of schemas with `additionalProperties`, such as lists of what this API returned. In
  these, only a field of the body itself is refused, if its name is nearly a known one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from gateway.config.source.expression import find_closest

from .integers import resolve_reference

READ_RECORD_FIELDS = frozenset(
    ("topic", "key", "value", "partition", "offset", "timestamp", "headers", "error")
)
"""The fields of `ConsumerRecord`."""

ALIASES_KEYWORD = "x-also-written"
"""The keyword of a property's schema with other names that clients use for it."""

MIN_SIMILARITY = 0.8  # as difflib's ratio: `partiton` is near, other words are not
MAX_UNKNOWN_NAMES = 20  # that are looked at in one object: each is compared with all known names

_BRANCHES = ("allOf", "anyOf", "oneOf")


class UnknownField(NamedTuple):
    """A field at `path` that a schema does not have. `known` is in the order of the schema."""

    path: Sequence[str | int]
    closest: str | None
    known: Sequence[str]


class FieldNames:
    """The names of the fields that a schema has, and of those in its members.

    `Validator` creates one for each schema. The schema must not refer to itself. Names in `ignored`
    are let through, although the schema does not have them.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        schema: Mapping[str, Any],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        properties, items, self._accepts_all = _collect_members(document, schema)
        self._ignored = ignored
        self._listed = tuple(properties)
        self._known = frozenset(properties)
        self._aliases = {
            alias: name
            for name, member in properties.items()
            for alias in resolve_reference(document, member).get(ALIASES_KEYWORD, ())
        }
        members = {name: FieldNames(document, each) for name, each in properties.items()}
        self._members = {name: each for name, each in members.items() if each.has_names}
        self._items = None if items is None else FieldNames(document, items, READ_RECORD_FIELDS)

    @property
    def has_names(self) -> bool:
        return bool(self._known) or (self._items is not None and self._items.has_names)

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
            known = self._items._known if not self._items._members else frozenset[str]()
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
) -> tuple[dict[str, Any], Mapping[str, Any] | None, bool]:
    """Return the properties of a schema and its branches, its items, and whether it accepts all."""
    schema = resolve_reference(document, schema)
    properties = dict(schema.get("properties", {}))
    items = schema.get("items")
    accepts_all = schema.get("additionalProperties", False) is not False
    for keyword in _BRANCHES:
        for branch in schema.get(keyword, ()):
            more, branch_items, branch_accepts = _collect_members(document, branch)
            properties = {**more, **properties}
            items = items if items is not None else branch_items
            accepts_all = accepts_all or branch_accepts
    return properties, items, accepts_all
