"""Check that a library has the internals that the gateway builds on.

The gateway derives classes from those of uvicorn and aiokafka, and uses undocumented attributes.
The packages that do so list them as `Internals` (`web/http/edge.py`,
`kafka/client/aiokafka_internals.py`), and check them once, when a process starts. The check
compares names and parameters, so it allows every version of a library that has kept them. It takes
less than 1 ms per library.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Internals:
    """The used parts of one class or function of a library.

    Attributes:
        methods: The parameters of each method that is called or overridden, without `self` and
            separated by spaces; None where they do not matter, or the method is not Python.
        state: Names in the code of a method, separated by spaces, by the method. With `__init__`
            these are the attributes of an instance.
    """

    module: str
    name: str
    methods: Mapping[str, str | None] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)


def find_missing(internals: Iterable[Internals]) -> list[str]:
    """Return what a library lacks of these internals, each as `Class.name` with its parameters."""
    return [missing for used in internals for missing in _find_missing(used)]


def _find_missing(used: Internals) -> Iterator[str]:
    try:
        defined = getattr(importlib.import_module(used.module), used.name)
    except (ImportError, AttributeError):
        yield f"{used.module}.{used.name}"
        return
    for method, parameters in used.methods.items():
        if not _has_method(defined, method, parameters):
            suffix = "" if parameters is None else f"({', '.join(parameters.split())})"
            yield f"{used.name}.{method}{suffix}"
    for method, names in used.state.items():
        code = getattr(getattr(defined, method, None), "__code__", None)
        known = () if code is None else code.co_names
        for name in names.split():
            if name not in known and not hasattr(defined, name):  # a property, for example
                where = f"{used.name}.{method}"
                yield f"{used.name}.{name}" if method == "__init__" else f"{name} in {where}"


def _has_method(defined: Any, method: str, parameters: str | None) -> bool:
    function = getattr(defined, method, None)
    if parameters is None or function is None:
        return function is not None
    return list(inspect.signature(function).parameters)[1:] == parameters.split()
