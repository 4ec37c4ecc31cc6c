from __future__ import annotations

import pytest

from gateway.internals import Internals, find_missing

MODULE = __name__


class Library:
    version_text = "1"

    def __init__(self) -> None:
        self._requests: list[str] = []

    def send(self, request: str, timeout: float = 1.0) -> None:
        self._requests.append(request)


def test_nothing_is_missing_where_names_and_parameters_agree():
    used = Internals(
        MODULE,
        "Library",
        methods={"send": "request timeout", "__init__": None},
        state={"__init__": "_requests version_text", "send": "append"},
    )
    assert find_missing([used]) == []


@pytest.mark.parametrize(
    "used, missing",
    [
        (Internals("no_such_library", "Library"), "no_such_library.Library"),
        (Internals(MODULE, "Renamed"), f"{MODULE}.Renamed"),
        (Internals(MODULE, "Library", {"post": "request"}), "Library.post(request)"),
        (Internals(MODULE, "Library", {"post": None}), "Library.post"),
        (Internals(MODULE, "Library", {"send": "request"}), "Library.send(request)"),
        (Internals(MODULE, "Library", state={"__init__": "_waiting"}), "Library._waiting"),
        (Internals(MODULE, "Library", state={"send": "prepare"}), "prepare in Library.send"),
        (Internals(MODULE, "Library", state={"post": "prepare"}), "prepare in Library.post"),
    ],
)
def test_what_is_missing_is_named(used, missing):
    assert find_missing([used]) == [missing]
