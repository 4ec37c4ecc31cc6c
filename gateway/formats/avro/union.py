"""Unions of Avro: which branch a value is of (see `codec`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastavro.read import LOGICAL_READERS

from gateway.formats.plain import describe_json_type
from gateway.formats.schema_mismatch import SchemaMismatch

from .types import AvroType, write_long

_BRANCH_LOGICAL_TYPE = (
    "gateway-branch"  # the logical type of numbers that are to be told by their branch
)
LOGICAL_READERS[f"int-{_BRANCH_LOGICAL_TYPE}"] = lambda data, *_: ("int", data)
LOGICAL_READERS[f"float-{_BRANCH_LOGICAL_TYPE}"] = lambda data, *_: ("float", data)


def mark_branches(plain: Any) -> Any:
    """Return a schema by which fastavro tells the int and the float of unions.

    It reads int and long as the same type of Python, and float and double; a union that has both
    would be shown, and written again, as the other branch.
    """
    if isinstance(plain, list):
        marked = [mark_branches(each) for each in plain]
        for narrow, wide in (("int", "long"), ("float", "double")):
            if narrow in plain and wide in plain:
                marked[plain.index(narrow)] = {"type": narrow, "logicalType": _BRANCH_LOGICAL_TYPE}
        return marked
    if not isinstance(plain, Mapping):
        return plain
    if plain["type"] == "record":
        fields = [{**each, "type": mark_branches(each["type"])} for each in plain["fields"]]
        return {**plain, "fields": fields}
    inner = {"array": "items", "map": "values"}.get(plain["type"])
    return plain if inner is None else {**plain, inner: mark_branches(plain[inner])}


def create_union(branches: list[AvroType]) -> AvroType:
    tags = {branch.name: n for n, branch in enumerate(branches)}
    some = [branch for branch in branches if branch.name != "null"]
    places = []
    for n in range(len(branches)):
        place = bytearray()
        write_long(n, place)
        places.append(bytes(place))

    def attempt(n: int, value: Any, out: bytearray) -> SchemaMismatch | None:
        mark = len(out)
        out += places[n]
        try:
            branches[n].write(value, out)
        except SchemaMismatch as misfit:
            del out[mark:]
            return misfit
        return None

    def write(value: Any, out: bytearray) -> None:
        told: SchemaMismatch | None = None
        if type(value) is dict and len(value) == 1:
            ((tag, inner),) = value.items()
            if tag in tags:
                told = attempt(tags[tag], inner, out)
                if told is None:
                    return
                told.add_step(tag)
        for n in range(len(branches)):
            if type(value) is str and "string" in tags and branches[n].plain in ("float", "double"):
                continue  # "NaN" is text where text may be
            misfit = attempt(n, value, out)
            if misfit is None:
                return
            if told is None and len(some) == 1 and branches[n] is some[0]:
                told = misfit
        names = ", ".join(tags)
        raise told or SchemaMismatch(
            f"is of none of its types: {names}; it is {describe_json_type(value)}"
        )

    def raw(value: Any, out: bytearray) -> None:
        """A default is of the first branch that takes it."""
        for n, branch in enumerate(branches):
            mark = len(out)
            out += places[n]
            try:
                branch.write_default(value, out)
                return
            except SchemaMismatch:
                del out[mark:]
        raise SchemaMismatch("has a default of none of its types")

    plain = [branch.plain for branch in branches]
    show = (
        _create_nullable_converter(some[0], tags)
        if len(some) == 1
        else _create_branch_converter(some)
    )
    made = AvroType("union", plain, write, show if some else None)
    made.write_default = raw
    return made


def _create_nullable_converter(branch: AvroType, tags: dict[str, int]) -> Any:
    def show(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple:  # its name, and it
            value = value[1]
        shown = branch.convert(value)
        if type(shown) is dict and len(shown) == 1 and next(iter(shown)) in tags:
            return {branch.name: shown}
        return shown

    return show


def _create_branch_converter(branches: list[AvroType]) -> Any:
    by_label = {branch.plain: branch for branch in branches if isinstance(branch.plain, str)}
    kinds = {
        bool: by_label.get("boolean"),
        float: by_label.get("double") or by_label.get("float"),
        str: by_label.get("string"),
        bytes: by_label.get("bytes"),
        list: next((branch for branch in branches if branch.name == "array"), None),
        dict: next((branch for branch in branches if branch.name == "map"), None),
    }
    whole = by_label.get("long") or by_label.get("int")

    def show(value: Any) -> Any:
        if value is None:
            return None
        branch: AvroType | None
        if type(value) is tuple:  # of a named type, or one that is marked
            branch, value = by_label[value[0]], value[1]
        elif type(value) is int:
            branch = whole
        else:
            branch = kinds[type(value)]
        assert branch is not None
        return {branch.name: branch.convert(value)}

    return show
