"""What ksqlDB answers a query with, read piece by piece as it comes.

Three forms of the same: a JSON text a line (`application/vnd.ksqlapi.delimited.v1`: an object with
the columns, then an array for each row), one JSON array of these (`application/json`), and the
array of `POST /query` (`{"header"}`, then `{"row"}`, at last `{"finalMessage"}`). An array begins
with `[`, lines with an object, so nobody needs to say which it is. Sans-I/O. Source: the HTTP API
reference of ksqlDB, "Run push and pull queries" and "Run a query".

Numbers keep their digits: where orjson would write others (a DECIMAL of 29 digits), the column's
value is made of `orjson.Fragment`, which is written as it came. A row that is complete and cannot
be read, or not be written, is one row: `write_row` says why, and the rows behind it go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.formats.exact_numbers import has_inexact_number

MAX_ROW_BYTES = 16 << 20  # bytes of one row; a longer one is no row but a peer that never ends it
MAX_MESSAGE_CHARS = 2000  # characters of what the server says of an error, or at last
TOMBSTONE = "$tombstone"  # beside the columns of a row that says: the one of this key is gone

_MARKS = re.compile(rb'["\\\[\]{}]')
_NAME = re.compile(r"\s*`((?:[^`]|``)+)`\s+")


class KsqlError(Exception):
    """ksqlDB refuses or gives up a query. code: its own, such as 40001; 0 where it says none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status in the code: 400 of 40001."""
        return self.code // 100 if 40_000 <= self.code < 60_000 else 500


class RowError(KsqlError):
    """A row cannot be handed on: it is too long, cannot be read, or not be written as JSON."""

    @property
    def status(self) -> int:
        """Unprocessable content: the query selects something that it may as well leave out."""
        return 422


class KsqlProtocolError(Exception):
    """What came is not what ksqlDB sends."""


class KsqlRow(dict[str, Any]):
    """Values by the names of their columns.

    fault: why they could not be read, and are not there; empty where they could.
    """

    error = ""


def write_row(row: KsqlRow) -> bytes:
    """Return a row as JSON.

    Raises:
        RowError: It could not be read, is nested deeper than 254 levels, or has text that is not
            Unicode.
    """
    if row.error:
        raise RowError(row.error)
    try:
        return orjson.dumps(row)
    except TypeError as error:
        raise RowError(f"a row cannot be written as JSON ({error}); select less of it") from None


@dataclass(frozen=True, slots=True)
class Columns:
    """Of the rows that follow. query: by which a push query is closed, empty for pull queries."""

    names: Sequence[str]
    types: Sequence[str] = ()
    query_id: str = ""


@dataclass(slots=True)
class ResponseParser:
    """The body of one answer.

    columns: once they came. final: the server's last word, such as `Limit Reached`.
    """

    columns: Columns | None = None
    final_message: str | None = None
    _splitter: _JsonSplitter = field(default_factory=lambda: _JsonSplitter())
    _pending_error: KsqlError | KsqlProtocolError | None = None

    def feed(self, data: bytes) -> list[KsqlRow]:
        """The rows that are complete with this. Raises KsqlError, Garbled.

        Rows before an error in the same piece are given first: `check` raises it then, and so do
        all later calls.
        """
        self.raise_pending()
        rows: list[KsqlRow] = []
        try:
            for text in self._splitter.feed(data):
                if len(text) > MAX_ROW_BYTES:
                    raise _create_too_long()
                self._parse_element(text, rows)
            if self._splitter.pending > MAX_ROW_BYTES:
                raise _create_too_long()
        except (KsqlError, KsqlProtocolError) as error:
            self._pending_error = error
            if not rows:
                raise
        return rows

    def raise_pending(self) -> None:
        """Raise the error that stood behind the rows of the last piece."""
        if self._pending_error is not None:
            raise self._pending_error

    def feed_eof(self) -> list[KsqlRow]:
        """The body is over: a last row that no line break followed. Raises as `take`, and Garbled
        where the body was cut in the middle."""
        self.raise_pending()
        rows: list[KsqlRow] = []
        for text in self._splitter.feed_eof():
            self._parse_element(text, rows, is_last=True)
        return rows

    def _parse_element(self, text: bytes, rows: list[KsqlRow], *, is_last: bool = False) -> None:
        try:
            element = _load(text)
        except ValueError as error:
            # what is behind the last line break, or the last element, may be cut
            if is_last or not self._is_row(text):
                raise KsqlProtocolError(
                    f"ksqlDB sent {text[:60]!r}, which is no JSON: {error}"
                ) from None
            row = KsqlRow()
            row.error = f"a row cannot be read, {text[:60]!r}: {error}"
            rows.append(row)
            return
        if isinstance(element, list):
            rows.append(self._build_row(element, text))
        elif isinstance(element, dict):
            self._parse_object(element, text, rows)
        else:
            raise KsqlProtocolError(f"ksqlDB sent {text[:60]!r} where a row or an object is due")

    def _parse_object(self, element: Mapping[str, Any], text: bytes, rows: list[KsqlRow]) -> None:
        error = parse_error(element)
        if error is not None:
            raise error
        header, row = element.get("header"), element.get("row")
        if "columnNames" in element:
            names, types = element["columnNames"], element.get("columnTypes")
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise KsqlProtocolError(f"ksqlDB sent {text[:60]!r} where names of columns are due")
            types = types if isinstance(types, list) else []
            self.columns = Columns(
                tuple(names), tuple(types), _text_or_empty(element.get("queryId"))
            )
        elif isinstance(header, dict):
            fields = list(parse_schema(_text_or_empty(header.get("schema"))))
            names, types = [name for name, _ in fields], [type for _, type in fields]
            self.columns = Columns(
                tuple(names), tuple(types), _text_or_empty(header.get("queryId"))
            )
        elif isinstance(row, dict):
            values = row.get("columns") or []
            if not isinstance(values, list):
                raise KsqlProtocolError(f"ksqlDB sent {text[:60]!r} where a row is due")
            made = self._build_row(values, text)
            if row.get("tombstone"):
                made[TOMBSTONE] = True
            rows.append(made)
        elif element.get("finalMessage"):
            self.final_message = str(element["finalMessage"])[:MAX_MESSAGE_CHARS]
        # anything else (tokens of consistency and continuation) is not ours to read

    def _build_row(self, values: Sequence[Any], text: bytes) -> KsqlRow:
        """text: of the element that has the values."""
        if self.columns is None:
            raise KsqlProtocolError("ksqlDB sent a row before it said what the columns are")
        if values and len(values) != len(self.columns.names):
            raise KsqlProtocolError(
                f"a row of {len(values)} values for {len(self.columns.names)} columns"
            )
        if has_inexact_number(text):
            values = _keep_digits(values, text)
        return KsqlRow(zip(self.columns.names, values, strict=False))

    def _is_row(self, text: bytes) -> bool:
        """Return whether a text that is no JSON stands where a row does."""
        return self.columns is not None and text.lstrip().startswith((b"[", b'{"row"'))


def _create_too_long() -> RowError:
    return RowError(f"a row of ksqlDB has more than {MAX_ROW_BYTES >> 20} MiB; select less")


def _load(text: bytes) -> Any:
    """Return JSON as orjson reads it, or with all digits where orjson has no double for a number.

    Raises:
        ValueError: It is none.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            return _load_exactly(text)
        except (ValueError, RecursionError):
            raise error from None


def _load_exactly(text: bytes) -> Any:
    """Return JSON with each number as it is written.

    `core.exact.reread` is for what orjson has read before. This is also for what it has not: NaN
    is no JSON, and bytes are UTF-8.
    """
    fragment = orjson.Fragment
    return json.loads(
        text.decode(), parse_int=fragment, parse_float=fragment, parse_constant=_refuse_constant
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _keep_digits(values: Sequence[Any], text: bytes) -> Sequence[Any]:
    """Return the values of a row, with the digits of the text where orjson would write others."""
    try:
        again = _load_exactly(text)
    except RecursionError:  # and too deep to be written, which `write_row` says
        return values
    exact = again if isinstance(again, list) else again["row"]["columns"]
    return [
        digits if _is_written_otherwise(value, digits) else value
        for value, digits in zip(values, exact, strict=True)
    ]


def _is_written_otherwise(value: Any, digits: Any) -> bool:
    try:
        return orjson.dumps(value) != orjson.dumps(digits)
    except TypeError:  # also too deep
        return False


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def parse_error(element: Mapping[str, Any]) -> KsqlError | None:
    """The error that an object tells of: a whole answer's, or one in the middle of rows."""
    told = element.get("errorMessage") or element
    if isinstance(told, str):
        return KsqlError(told[:MAX_MESSAGE_CHARS])
    if not isinstance(told, Mapping) or (told is element and "error_code" not in told):
        return None
    code = told.get("error_code")
    message = str(told.get("message") or "ksqlDB gives no reason")[:MAX_MESSAGE_CHARS]
    return KsqlError(message, code if isinstance(code, int) else 0)


def parse_schema(text: str) -> Iterator[tuple[str, str]]:
    """Names and types of "`ID` BIGINT KEY, `AT` STRUCT<`X` INT, `Y` INT>"."""
    for part in _split_columns(text):
        name = _NAME.match(part)
        if name is None:
            raise KsqlProtocolError(f"{part.strip()!r} is no column of a ksqlDB schema")
        yield name[1].replace("``", "`"), part[name.end() :].strip()


def _split_columns(text: str) -> Iterable[str]:
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


class _JsonSplitter:
    """The JSON texts of a body, each once it is complete."""

    def __init__(self) -> None:
        self._buffer = (
            bytearray()
        )  # so that a row that comes in 1,000 pieces is not copied for each
        self._is_array: bool | None = None
        self._is_closed = False
        self._scanned = self._depth = (
            0  # how far the rest was looked through, and what is open there
        )
        self._is_quoted = False

    @property
    def pending(self) -> int:
        """How many bytes are not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterable[bytes]:
        self._buffer += data
        if self._is_array is None:
            self._buffer = self._buffer.lstrip()
            if not self._buffer:
                return ()
            self._is_array = self._buffer.startswith(b"[")
            if self._is_array:
                del self._buffer[:1]
        return self._take_elements() if self._is_array else self._take_lines()

    def feed_eof(self) -> Iterable[bytes]:
        """Raises Garbled where something is not complete."""
        rest = bytes(self._buffer.strip())
        self._buffer.clear()
        if (rest and not rest.endswith((b"]", b"}"))) or (self._is_array and not self._is_closed):
            raise KsqlProtocolError(f"the answer of ksqlDB was cut in the middle, at {rest[:60]!r}")
        return [rest] if rest else []

    def _take_lines(self) -> list[bytes]:
        end = self._buffer.rfind(b"\n", self._scanned)
        whole = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        self._scanned = len(self._buffer)
        return [line for line in whole.split(b"\n") if line.strip()]

    def _take_elements(self) -> list[bytes]:
        """Of the array; what comes between them (commas, line breaks) is passed over."""
        found: list[bytes] = []
        begin, at = 0, self._scanned
        while (mark := _MARKS.search(self._buffer, at)) is not None:
            at, sign = mark.end(), bytes(mark[0])
            if sign == b"\\":
                at += 1  # what it escapes: a quote or a backslash matter, and neither ends a text
            elif sign == b'"':
                self._is_quoted = not self._is_quoted
            elif self._is_quoted:
                continue
            elif sign in b"[{":
                self._depth += 1
            elif self._depth == 0:  # the array's own end
                self._is_closed, begin, at = True, len(self._buffer), len(self._buffer)
            else:
                self._depth -= 1
                if self._depth == 0:
                    found.append(bytes(self._buffer[begin:at]).lstrip(b", \r\n\t"))
                    begin = at
        # an escape may be the last byte: what it escapes is still to come
        self._scanned = max(at, len(self._buffer)) - begin
        del self._buffer[:begin]
        return found
