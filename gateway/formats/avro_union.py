"""Unions of Avro: which branch a value is of (see `avro`)."""

from __future__ import annotations

from typing import Any

from .avro_types import Type, zigzag
from .misfit import Misfit
from .plain import kind_of


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
    short, long = by_label.get("int"), by_label.get("long")

    def show(value: Any) -> Any:
        if value is None:
            return None
        branch: Type | None
        if type(value) is tuple:
            branch, value = by_label[value[0]], value[1]
        elif type(value) is int:
            fits = short is not None and (long is None or -(2**31) <= value < 2**31)
            branch = short if fits else long
        else:
            branch = kinds[type(value)]
        assert branch is not None
        return {branch.name: branch.shown(value)}

    return show
