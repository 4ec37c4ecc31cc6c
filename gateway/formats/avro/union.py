"""Unions of Avro: which branch a value is of (see `codec`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastavro.read import LOGICAL_READERS

from gateway.formats.misfit import Misfit
from gateway.formats.plain import kind_of

from .types import Type, zigzag

_BRANCH = "gateway-branch"  # the logical type of numbers that are to be told by their branch
LOGICAL_READERS[f"int-{_BRANCH}"] = lambda data, *_: ("int", data)
LOGICAL_READERS[f"float-{_BRANCH}"] = lambda data, *_: ("float", data)


def mark_branches(plain: Any) -> Any:
    """Return a schema by which fastavro tells the int and the float of unions.

    It reads int and long as the same type of Python, and float and double; a union that has both
    would be shown, and written again, as the other branch.
    """
    if isinstance(plain, list):
        marked = [mark_branches(each) for each in plain]
        for narrow, wide in (("int", "long"), ("float", "double")):
            if narrow in plain and wide in plain:
                marked[plain.index(narrow)] = {"type": narrow, "logicalType": _BRANCH}
        return marked
    if not isinstance(plain, Mapping):
        return plain
    if plain["type"] == "record":
        fields = [{**each, "type": mark_branches(each["type"])} for each in plain["fields"]]
        return {**plain, "fields": fields}
    inner = {"array": "items", "map": "values"}.get(plain["type"])
    return plain if inner is None else {**plain, inner: mark_branches(plain[inner])}


def union(branches: list[Type]) -> Type:
    tags = {branch.name: n for n, branch in enumerate(branches)}
    some = [branch for branch in branches if branch.name != "null"]
    places = []
    for n in range(len(branches)):
        place = bytearray()
        zigzag(n, place)
        places.append(bytes(place))

    def attempt(n: int, value: Any, out: bytearray) -> Misfit | None:
        mark = len(out)
        out += places[n]
        try:
            branches[n].write(value, out)
        except Misfit as misfit:
            del out[mark:]
            return misfit
        return None

    def write(value: Any, out: bytearray) -> None:
        told: Misfit | None = None
        if type(value) is dict and len(value) == 1:
            ((tag, inner),) = value.items()
            if tag in tags:
                told = attempt(tags[tag], inner, out)
                if told is None:
                    return
                told.inside(tag)
        for n in range(len(branches)):
            if type(value) is str and "string" in tags and branches[n].plain in ("float", "double"):
                continue  # "NaN" is text where text may be
            misfit = attempt(n, value, out)
            if misfit is None:
                return
            if told is None and len(some) == 1 and branches[n] is some[0]:
                told = misfit
        names = ", ".join(tags)
        raise told or Misfit(f"is of none of its types: {names}; it is {kind_of(value)}")

    def raw(value: Any, out: bytearray) -> None:
        """A default is of the first branch that takes it."""
        for n, branch in enumerate(branches):
            mark = len(out)
            out += places[n]
            try:
                branch.raw(value, out)
                return
            except Misfit:
                del out[mark:]
        raise Misfit("has a default of none of its types")

    plain = [branch.plain for branch in branches]
    show = _of_one(some[0], tags) if len(some) == 1 else _of_several(some)
    made = Type("union", plain, write, show if some else None)
    made.raw = raw
    return made


def _of_one(branch: Type, tags: dict[str, int]) -> Any:
    def show(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple:  # its name, and it
            value = value[1]
        shown = branch.shown(value)
        if type(shown) is dict and len(shown) == 1 and next(iter(shown)) in tags:
            return {branch.name: shown}
        return shown

    return show


def _of_several(branches: list[Type]) -> Any:
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
        branch: Type | None
        if type(value) is tuple:  # of a named type, or one that is marked
            branch, value = by_label[value[0]], value[1]
        elif type(value) is int:
            branch = whole
        else:
            branch = kinds[type(value)]
        assert branch is not None
        return {branch.name: branch.shown(value)}

    return show
