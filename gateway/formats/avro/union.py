"""Represent Avro's unions: find the branch of a JSON value, and show the branch of a read one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastavro.read import LOGICAL_READERS

from gateway.formats.budget import Budget
from gateway.formats.plain import describe_json_type
from gateway.formats.serialization import SchemaMismatch

from .types import AvroType

MAX_FAILED_ATTEMPTS = 250_000  # to convert parts of one value by branches of unions: 0.5 s
_SEARCHED_BRANCHES = 32  # that fastavro's writer compares with a name in the time of an attempt

# A logical type of our own, by which fastavro returns a number together with its branch.
_BRANCH_LOGICAL_TYPE = "gateway-branch"
LOGICAL_READERS[f"int-{_BRANCH_LOGICAL_TYPE}"] = lambda data, *_: ("int", data)
LOGICAL_READERS[f"float-{_BRANCH_LOGICAL_TYPE}"] = lambda data, *_: ("float", data)


def mark_branches(plain: Any) -> Any:
    """Mark int and float in unions of a plain schema, so that fastavro returns their branch.

    It reads int and long as the same type of Python, and float and double as well. In a union that
    has both, a value would otherwise be shown, and written again, as the other branch.
    """
    if isinstance(plain, list):
        marked = [mark_branches(branch) for branch in plain]
        for narrow, wide in (("int", "long"), ("float", "double")):
            if narrow in plain and wide in plain:
                marked[plain.index(narrow)] = {"type": narrow, "logicalType": _BRANCH_LOGICAL_TYPE}
        return marked
    if not isinstance(plain, Mapping):
        return plain
    if plain["type"] == "record":
        fields = [{**field, "type": mark_branches(field["type"])} for field in plain["fields"]]
        return {**plain, "fields": fields}
    inner = {"array": "items", "map": "values"}.get(plain["type"])
    return plain if inner is None else {**plain, inner: mark_branches(plain[inner])}


class UnionAttempts:
    """The results of converting the objects and arrays of one JSON value by branches of unions.

    A union tries one branch after the other. Where records contain themselves, each level would
    multiply the attempts at the levels inside: a value of 300 bytes, 16 levels deep in two similar
    records, took 5 s. So no branch is asked twice about the same object.

    One instance per schema, owned by its codec, which calls `clear` after each value and after the
    defaults of the schema: objects are known by their id, which is theirs only while they exist.
    """

    def __init__(self) -> None:
        self.failed = Budget(
            MAX_FAILED_ATTEMPTS,
            "the value has too many values that do not fit the first branches of the Avro schema's"
            " unions; name their branches, or divide it",
        )
        self._converted: dict[tuple[int, int, bool], Any] = {}
        self._mismatches: dict[tuple[int, int, bool], tuple[Any, tuple[str, ...]]] = {}

    def convert(self, branch: AvroType, value: Any, *, is_default: bool = False) -> Any:
        convert = branch.default_from_json if is_default else branch.from_json
        if type(value) is not dict and type(value) is not list:
            return convert(value)
        key = (id(branch), id(value), is_default)
        if key in self._mismatches:
            raise SchemaMismatch(*self._mismatches[key])
        if key not in self._converted:
            try:
                self._converted[key] = convert(value)
            except SchemaMismatch as mismatch:
                self._mismatches[key] = mismatch.message, mismatch.path
                raise
        return self._converted[key]

    def clear(self) -> None:
        self.failed.renew()
        self._converted.clear()
        self._mismatches.clear()


def create_union(branches: list[AvroType], attempts: UnionAttempts) -> AvroType:
    """Create a union, which shares `attempts` with the others of the schema.

    A value may name its branch, as in `{"string": "x"}`, or not; then it is of the first branch
    that accepts it. A default never names its branch.

    Raises:
        ValueError: The union contains a union, or two branches of one name (Avro specification
            1.12, Unions): two arrays, or an int and a date.
    """
    by_name: dict[str, AvroType] = {}
    for branch in branches:
        if branch.name == "union":
            raise ValueError("a union contains a union")
        if branch.name in by_name:
            raise ValueError(f"a union has two branches of type {branch.name}")
        by_name[branch.name] = branch
    non_null = [branch for branch in branches if branch.name != "null"]
    # What fastavro calls each branch: the label of a named type, the kind of the others.
    labels = {
        branch.name: branch.plain if isinstance(branch.plain, str) else branch.name
        for branch in branches
    }

    # In a union with string, "NaN" is a string.
    of_text = [branch for branch in non_null if branch.plain not in ("float", "double")]

    search_attempts = len(branches) // _SEARCHED_BRANCHES

    def list_candidates(value: Any) -> list[AvroType]:
        if value is None:
            return branches
        return of_text if type(value) is str and "string" in by_name else non_null

    def from_json(value: Any) -> tuple[str, Any]:
        # The most helpful of the mismatches: that of the branch which the value names, or else that
        # of the only branch beside null.
        reported: SchemaMismatch | None = None
        attempts.failed.spend(search_attempts)
        if type(value) is dict and len(value) == 1:
            ((name, inner),) = value.items()
            if name in by_name:
                try:
                    branch = by_name[name]
                    return labels[name], attempts.convert(branch, inner)
                except SchemaMismatch as mismatch:
                    reported = mismatch.add_step(name)
        for branch in list_candidates(value):
            try:
                return labels[branch.name], attempts.convert(branch, value)
            except SchemaMismatch as mismatch:
                attempts.failed.spend(1)
                if reported is None and len(non_null) == 1 and branch is non_null[0]:
                    reported = mismatch
        names = ", ".join(by_name)
        raise reported or SchemaMismatch(
            f"is of none of its types: {names}; it is {describe_json_type(value)}"
        )

    def default_from_json(value: Any) -> tuple[str, Any]:
        for branch in list_candidates(value):
            try:
                return labels[branch.name], attempts.convert(branch, value, is_default=True)
            except SchemaMismatch:
                attempts.failed.spend(1)
        raise SchemaMismatch("has a default of none of its types")

    plain = [branch.plain for branch in branches]
    to_json = (
        _create_nullable_converter(non_null[0], by_name)
        if len(non_null) == 1
        else _create_branch_converter(non_null)
    )
    union = AvroType("union", plain, from_json, to_json if non_null else None)
    union.default_from_json = default_from_json
    return union


def _create_nullable_converter(branch: AvroType, names: Collection[str]) -> Any:
    def to_json(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple:  # fastavro's name of a named type, and its value
            value = value[1]
        converted = branch.convert(value)
        # If it looks like a named branch it would be written back as that: name the real one.
        if type(converted) is dict and len(converted) == 1 and next(iter(converted)) in names:
            return {branch.name: converted}
        return converted

    return to_json


def _create_branch_converter(branches: list[AvroType]) -> Any:
    # Branches that fastavro returns with a label are found by it, the others by the Python type.
    by_label = {branch.plain: branch for branch in branches if isinstance(branch.plain, str)}
    by_python_type = {
        bool: by_label.get("boolean"),
        float: by_label.get("double") or by_label.get("float"),
        str: by_label.get("string"),
        bytes: by_label.get("bytes"),
        list: next((branch for branch in branches if branch.name == "array"), None),
        dict: next((branch for branch in branches if branch.name == "map"), None),
    }
    # If both are there, fastavro marks an int (`mark_branches`), so an unmarked number is a long.
    integer = by_label.get("long") or by_label.get("int")

    def to_json(value: Any) -> Any:
        if value is None:
            return None
        branch: AvroType | None
        if type(value) is tuple:  # of a named type, or a marked number
            branch, value = by_label[value[0]], value[1]
        elif type(value) is int:
            branch = integer
        else:
            branch = by_python_type[type(value)]
        assert branch is not None
        return {branch.name: branch.convert(value)}

    return to_json
