"""Represent Avro's records: check their fields, and compute the defaults of missing ones.

A record may refer to itself, so it can be found by its name before its fields are known, and its
defaults are computed only when every type that they may refer to is complete. A default that is a
record takes its own missing fields from their defaults in turn. Java's library (1.12.1) does the
same where it can; it refuses a default of a record that encloses its field.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.formats.budget import Budget
from gateway.formats.plain import describe_json_type
from gateway.formats.serialization import SchemaMismatch

from .types import AvroType, ConvertToJson, suggest_name


class RecordFields:
    """The fields of one record type.

    The builder of a schema creates one for each record, adds the fields, and calls
    `resolve_defaults` when all types of the schema are complete. After that nothing changes. The
    records of a schema share `budget`.
    """

    def __init__(self, name: str, budget: Budget) -> None:
        self._name = name
        self._budget = budget
        self._types: dict[str, AvroType] = {}
        self._schema_defaults: dict[str, Any] = {}  # also those that do not fit
        self._defaults: dict[str, Any] = {}  # those that fit, as fastavro writes them
        self._default_sizes: dict[str, int] = {}  # of those, in bytes of Avro
        self._required: list[str] = []  # the fields without those
        self._resolving: set[str] = set()  # the fields whose defaults are being computed
        self._resolved: set[str] = set()  # those whose defaults are computed, whether they fit
        self._converters: list[tuple[str, ConvertToJson]] = []  # for what is not JSON as it is read

    def add_field(self, schema: Mapping[str, Any], field_type: AvroType) -> None:
        """Add a field; raises ValueError if the record has one of this name."""
        name = schema["name"]
        if type(name) is not str:
            raise ValueError(f"{self._name} has a field whose name is {describe_json_type(name)}")
        if name in self._types:
            raise ValueError(f"{self._name} has two fields '{name}'")
        self._types[name] = field_type
        if field_type.to_json is not None:
            self._converters.append((name, field_type.to_json))
        if "default" in schema:
            self._schema_defaults[name] = schema["default"]

    def get_converter(self) -> ConvertToJson | None:
        return self.to_json if self._converters else None

    def resolve_defaults(self, measure: Callable[[Any], int]) -> None:
        """Compute the defaults of all fields; raises ValueError if one contains itself.

        Avro's own libraries differ about a default that does not fit its field. Here the field is
        required. `measure` returns about how many bytes of Avro a default has.
        """
        for name in self._schema_defaults:
            self._resolve_default(name)
        self._default_sizes = {name: measure(value) for name, value in self._defaults.items()}
        self._required = [name for name in self._types if name not in self._defaults]

    def from_json(self, value: Any) -> dict[str, Any]:
        """Convert a JSON object to the value that fastavro writes; raises SchemaMismatch."""
        if type(value) is not dict:
            raise self._build_type_mismatch(value)
        # Before the fields are converted: a union tries one record after the other, which takes
        # exponential time in nested ones if each looks into the same field first.
        if value.keys() != self._types.keys():
            self._check_names(value, self._required)
            sizes = self._default_sizes.items()
            self._budget.spend(sum(size for name, size in sizes if name not in value))
        converted = self._defaults.copy()
        for name, part in value.items():
            try:
                converted[name] = self._types[name].from_json(part)
            except SchemaMismatch as mismatch:
                raise mismatch.add_step(name) from None
        return converted

    def default_from_json(self, value: Any) -> dict[str, Any]:
        """Convert a default; raises SchemaMismatch, or ValueError if it contains itself."""
        if type(value) is not dict:
            raise self._build_type_mismatch(value)
        # First, so that a default that lacks a field is not said to contain itself. Which defaults
        # were found not to fit is not looked at: the result must not depend on the order.
        self._check_names(
            value, [name for name in self._types if name not in self._schema_defaults]
        )
        converted = {
            name: self._types[name].default_from_json(part) for name, part in value.items()
        }
        for name in self._types:
            if name not in value:
                self._resolve_default(name)
                if name not in self._defaults:
                    raise self._build_missing_field(name)
                converted[name] = self._defaults[name]
        return converted

    def to_json(self, value: Any) -> Any:
        """Convert a record that fastavro read to JSON, in place."""
        for name, convert in self._converters:
            value[name] = convert(value[name])
        return value

    def _resolve_default(self, name: str) -> None:
        if name in self._resolved:
            return
        if name in self._resolving:
            raise ValueError(f"the default of '{name}' of {self._name} contains itself")
        self._resolving.add(name)
        with contextlib.suppress(SchemaMismatch):  # see `resolve_defaults`
            self._defaults[name] = self._types[name].default_from_json(self._schema_defaults[name])
        self._resolving.remove(name)
        self._resolved.add(name)

    def _check_names(self, value: Mapping[str, Any], required: Iterable[str]) -> None:
        for name in required:
            if name not in value:
                raise self._build_missing_field(name)
        if not value.keys() <= self._types.keys():
            raise self._build_unknown_field(value)

    def _build_type_mismatch(self, value: Any) -> SchemaMismatch:
        kind = describe_json_type(value)
        return SchemaMismatch(f"takes an object (a {self._name}), not {kind}")

    def _build_missing_field(self, name: str) -> SchemaMismatch:
        return SchemaMismatch(f"lacks '{name}' of {self._name}")

    def _build_unknown_field(self, value: Mapping[str, Any]) -> SchemaMismatch:
        unknown = next(name for name in value if name not in self._types)
        if type(unknown) is not str:  # from a caller of the Python API
            return SchemaMismatch("has a field whose name is not a string")
        problem = f"has '{unknown}', which {self._name} has not"
        return SchemaMismatch(lambda: f"{problem}; {suggest_name(unknown, list(self._types))}")
