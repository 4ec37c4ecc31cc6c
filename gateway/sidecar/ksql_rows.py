"""What ksqlDB answers a query with, read piece by piece as it comes.

Three forms of the same: a JSON text a line (`application/vnd.ksqlapi.delimited.v1`: an object with
the columns, then an array for each row), one JSON array of these (`application/json`), and the
array of `POST /query` (`{"header"}`, then `{"row"}`, at last `{"finalMessage"}`). An array begins
with `[`, lines with an object, so nobody needs to say which it is. Sans-I/O. Source: the HTTP API
reference of ksqlDB, "Run push and pull queries" and "Run a query".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

LARGEST = 16 << 20  # bytes of one row; a longer one is no row but a peer that never ends it
TOMBSTONE = "$tombstone"  # beside the columns of a row that says: the one of this key is gone

_MARKS = re.compile(rb'["\\\[\]{}]')
_NAME = re.compile(r"\s*`((?:[^`]|``)+)`\s+")

Row: TypeAlias = dict[str, Any]


class KsqlError(Exception):
    """ksqlDB refuses or gives up a query. code: its own, such as 40001; 0 where it says none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status in the code: 400 of 40001."""
        return self.code // 100 if 40_000 <= self.code < 60_000 else 500


class Garbled(Exception):
    """What came is not what ksqlDB sends."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Of the rows that follow. query: by which a push query is closed, empty for pull queries."""

    names: Sequence[str]
    types: Sequence[str] = ()
    query: str = ""


@dataclass(slots=True)
class Reading:
    """The body of one answer.

    columns: once they came. final: the server's last word, such as `Limit Reached`.
    """

    columns: Columns | None = None
    final: str | None = None
    _pieces: _Pieces = field(default_factory=lambda: _Pieces())

    def take(self, data: bytes) -> list[Row]:
        """The rows that are complete with this. Raises KsqlError, Garbled.

        A row before an error in the same piece is given first: the error is raised by the next
        call, which `end` is, too.
        """
        rows: list[Row] = []
        for text in self._pieces.take(data):
            try:
                self._element(text, rows)
            except (KsqlError, Garbled) as error:
                if not rows:
                    raise
                self._pieces.hold(error)
                break
        return rows

    def end(self) -> list[Row]:
        """The body is over: a last row that no line break followed. Raises as `take`, and Garbled
        where the body was cut in the middle."""
        rows: list[Row] = []
        for text in self._pieces.end():
            self._element(text, rows)
        return rows

    def _element(self, text: bytes, rows: list[Row]) -> None:
        try:
            element = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise Garbled(f"ksqlDB sent {text[:60]!r}, which is no JSON: {error}") from None
        if isinstance(element, list):
            rows.append(self._row(element))
        elif isinstance(element, dict):
            self._object(element, rows)
        else:
            raise Garbled(f"ksqlDB sent {text[:60]!r} where a row or an object is due")

    def _object(self, element: Mapping[str, Any], rows: list[Row]) -> None:
        error = refusal(element)
        if error is not None:
            raise error
        header, row = element.get("header"), element.get("row")
        if "columnNames" in element:
            query = element.get("queryId") or ""
            types = element.get("columnTypes") or ()
            self.columns = Columns(tuple(element["columnNames"]), tuple(types), query)
        elif isinstance(header, dict):
            fields = list(schema(header.get("schema") or ""))
            names, types = [name for name, _ in fields], [type for _, type in fields]
            self.columns = Columns(tuple(names), tuple(types), header.get("queryId") or "")
        elif isinstance(row, dict):
            made = self._row(row.get("columns") or [])
            rows.append({**made, TOMBSTONE: True} if row.get("tombstone") else made)
        elif element.get("finalMessage"):
            self.final = str(element["finalMessage"])
        # anything else (tokens of consistency and continuation) is not ours to read

    def _row(self, values: Sequence[Any]) -> Row:
        if self.columns is None:
            raise Garbled("ksqlDB sent a row before it said what the columns are")
        if values and len(values) != len(self.columns.names):
            raise Garbled(f"a row of {len(values)} values for {len(self.columns.names)} columns")
        return dict(zip(self.columns.names, values, strict=False))


def refusal(element: Mapping[str, Any]) -> KsqlError | None:
    """The error that an object tells of: a whole answer's, or one in the middle of rows."""
    told = element.get("errorMessage") or element
    if isinstance(told, str):
        return KsqlError(told)
    if not isinstance(told, Mapping) or (told is element and "error_code" not in told):
        return None
    code = told.get("error_code")
    message = str(told.get("message") or "ksqlDB gives no reason")
    return KsqlError(message, code if isinstance(code, int) else 0)


def schema(text: str) -> Iterator[tuple[str, str]]:
    """Names and types of "`ID` BIGINT KEY, `AT` STRUCT<`X` INT, `Y` INT>"."""
    for part in _parts(text):
        name = _NAME.match(part)
        if name is None:
            raise Garbled(f"{part.strip()!r} is no column of a ksqlDB schema")
        yield name[1].replace("``", "`"), part[name.end() :].strip()


def _parts(text: str) -> Iterable[str]:
    """Cut at the commas outside of names, brackets and parentheses."""
    depth, quoted, begin = 0, False, 0
    for at, char in enumerate(text):
        if char == "`":
            quoted = not quoted
        elif not quoted and char in "<(":
            depth += 1
        elif not quoted and char in ">)":
            depth -= 1
        elif char == "," and not quoted and not depth:
            yield text[begin:at]
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:]


class _Pieces:
    """The JSON texts of a body, each once it is complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._array: bool | None = None
        self._closed = False
        self._held: Exception | None = None
        self._at = self._depth = 0  # how far the rest was looked through, and what is open there
        self._quoted = False

    def hold(self, error: Exception) -> None:
        self._held = error

    def take(self, data: bytes) -> Iterable[bytes]:
        if self._held is not None:
            raise self._held
        self._rest += data
        if self._array is None:
            self._rest = self._rest.lstrip()
            if not self._rest:
                return ()
            self._array = self._rest.startswith(b"[")
            self._rest = self._rest[1:] if self._array else self._rest
        found = self._elements() if self._array else self._lines()
        if len(self._rest) > LARGEST:
            raise Garbled(f"a row of ksqlDB has more than {LARGEST >> 20} MiB; select less")
        return found

    def end(self) -> Iterable[bytes]:
        """Raises what is held, and Garbled where something is not complete."""
        rest, self._rest = self._rest.strip(), b""
        if self._held is not None:
            raise self._held
        if (rest and not rest.endswith((b"]", b"}"))) or (self._array and not self._closed):
            raise Garbled(f"the answer of ksqlDB was cut in the middle, at {rest[:60]!r}")
        return [rest] if rest else []

    def _lines(self) -> list[bytes]:
        *lines, self._rest = self._rest.split(b"\n")
        return [line for line in lines if line.strip()]

    def _elements(self) -> list[bytes]:
        """Of the array; what comes between them (commas, line breaks) is passed over."""
        found: list[bytes] = []
        begin, at = 0, self._at
        while (mark := _MARKS.search(self._rest, at)) is not None:
            at, sign = mark.end(), mark[0]
            if sign == b"\\":
                at += 1  # what it escapes: a quote or a backslash matter, and neither ends a text
            elif sign == b'"':
                self._quoted = not self._quoted
            elif self._quoted:
                continue
            elif sign in b"[{":
                self._depth += 1
            elif self._depth == 0:  # the array's own end
                self._closed, begin, at = True, len(self._rest), len(self._rest)
            else:
                self._depth -= 1
                if self._depth == 0:
                    found.append(self._rest[begin:at].lstrip(b", \r\n\t"))
                    begin = at
        # an escape may be the last byte: what it escapes is still to come
        self._rest, self._at = self._rest[begin:], max(at - begin, len(self._rest) - begin)
        return found
