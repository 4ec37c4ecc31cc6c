"""Parse ksqlDB's answer to a query, piece by piece as it arrives.

There are three forms: a JSON text a line (`application/vnd.ksqlapi.delimited.v1`: an object with
the columns, then an array for each row), one JSON array of these (`application/json`), and the
array of `POST /query` (`{"header"}`, then `{"row"}`, at last `{"finalMessage"}`). An array starts
with `[`, lines start with an object, so the form need not be known. Sans-I/O. Source: ksqlDB's HTTP
API reference, "Run push and pull queries" and "Run a query".

Numbers keep their digits: where orjson would write others (a DECIMAL of 29 digits), the value
contains `orjson.Fragment`. A complete row that cannot be read or written concerns only itself:
`write_row` raises the reason, and the next rows follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.formats.exact_values import has_inexact_number

MAX_ROW_BYTES = 16 << 20  # a longer row is one that the server never ends
MAX_MESSAGE_CHARS = 2000  # of an error message, or of the final message
TOMBSTONE = "$tombstone"  # a member of rows that say that the row of their key is deleted

_MARKS = re.compile(rb'["\\\[\]{}]')
_NAME = re.compile(r"\s*`((?:[^`]|``)+)`\s+")


class KsqlError(Exception):
    """ksqlDB refuses a query, or gives it up. The code is ksqlDB's own, such as 40001, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """Return the HTTP status in the code: 400 of 40001."""
        return self.code // 100 if 40_000 <= self.code < 60_000 else 500


class RowError(KsqlError):
    """A row is too long, cannot be read, or cannot be written as JSON."""

    @property
    def status(self) -> int:
        return 422


class KsqlProtocolError(Exception): ...


class KsqlRow(dict[str, Any]):
    """The values of a row by column name; missing if there is an `error` in reading them."""

    error = ""


def write_row(row: KsqlRow) -> bytes:
    """Return a row as JSON; raises RowError if it is unreadable, too deep, or not Unicode."""
    if row.error:
        raise RowError(row.error)
    try:
        return orjson.dumps(row)
    except TypeError as error:
        raise RowError(f"a row cannot be written as JSON ({error}); select less of it") from None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the next rows. A push query is closed by its `query_id`."""

    names: Sequence[str]
    types: Sequence[str] = ()
    query_id: str = ""


@dataclass(slots=True)
class ResponseParser:
    columns: Columns | None = None
    final_message: str | None = None
    _splitter: _JsonSplitter = field(default_factory=lambda: _JsonSplitter())
    _pending_error: KsqlError | KsqlProtocolError | None = None

    def feed(self, data: bytes) -> list[KsqlRow]:
        """Return the rows that are complete with this piece; raises KsqlError or KsqlProtocolError.

        Rows before an error in the same piece are returned first. `raise_pending` raises the error
        then, and so do all later calls.
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
        if self._pending_error is not None:
            raise self._pending_error

    def feed_eof(self) -> list[KsqlRow]:
        """Return the last row at the end of a body without a line break; raises as `feed`."""
        self.raise_pending()
        rows: list[KsqlRow] = []
        for text in self._splitter.feed_eof():
            self._parse_element(text, rows, is_last=True)
        return rows

    def _parse_element(self, text: bytes, rows: list[KsqlRow], *, is_last: bool = False) -> None:
        try:
            element = _load(text)
        except ValueError as error:
            # What follows the last line break, or the last element, may be cut: that is no row.
            is_row = self.columns is not None and text.lstrip().startswith((b"[", b'{"row"'))
            if is_last or not is_row:
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
        """Parse an object: an error, the columns, a row, or the final message."""
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
            parsed_row = self._build_row(values, text)
            if row.get("tombstone"):
                parsed_row[TOMBSTONE] = True
            rows.append(parsed_row)
        elif element.get("finalMessage"):
            self.final_message = str(element["finalMessage"])[:MAX_MESSAGE_CHARS]
        # Anything else (consistency tokens, continuation tokens) is ignored.

    def _build_row(self, values: Sequence[Any], text: bytes) -> KsqlRow:
        if self.columns is None:
            raise KsqlProtocolError("ksqlDB sent a row before it said what the columns are")
        if values and len(values) != len(self.columns.names):
            raise KsqlProtocolError(
                f"a row of {len(values)} values for {len(self.columns.names)} columns"
            )
        if has_inexact_number(text, values):
            values = _keep_digits(values, text)
        return KsqlRow(zip(self.columns.names, values, strict=False))


def _create_too_long() -> RowError:
    return RowError(f"a row of ksqlDB has more than {MAX_ROW_BYTES >> 20} MiB; select less")


def _load(text: bytes) -> Any:
    """Parse JSON with orjson, or with all digits where orjson has no double for a number."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            return _load_exactly(text)
        except (ValueError, RecursionError):
            raise error from None


def _load_exactly(text: bytes) -> Any:
    """Parse JSON with each number as it is written.

    Unlike `core.channel.exact_json`, it takes JSON that orjson has not read before: it refuses NaN,
    which Python's JSON accepts, and bytes that are not UTF-8.
    """
    fragment = orjson.Fragment
    return json.loads(
        text.decode(), parse_int=fragment, parse_float=fragment, parse_constant=_refuse_constant
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _keep_digits(values: Sequence[Any], text: bytes) -> Sequence[Any]:
    try:
        exact_element = _load_exactly(text)
    except RecursionError:  # too deep to be written as well, and `write_row` says so
        return values
    exact_values = (
        exact_element if isinstance(exact_element, list) else exact_element["row"]["columns"]
    )
    return [
        digits if _is_written_otherwise(value, digits) else value
        for value, digits in zip(values, exact_values, strict=True)
    ]


def _is_written_otherwise(value: Any, digits: Any) -> bool:
    try:
        return orjson.dumps(value) != orjson.dumps(digits)
    except TypeError:  # too deep; `write_row` says so
        return False


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def parse_error(element: Mapping[str, Any]) -> KsqlError | None:
    """Return the error of a whole response, or of an object among rows, if it states one."""
    error = element.get("errorMessage") or element
    if isinstance(error, str):
        return KsqlError(error[:MAX_MESSAGE_CHARS])
    if not isinstance(error, Mapping) or (error is element and "error_code" not in error):
        return None
    code = error.get("error_code")
    message = str(error.get("message") or "ksqlDB gives no reason")[:MAX_MESSAGE_CHARS]
    return KsqlError(message, code if isinstance(code, int) else 0)


def parse_schema(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and types of "`ID` BIGINT KEY, `AT` STRUCT<`X` INT, `Y` INT>"."""
    for part in _split_columns(text):
        name = _NAME.match(part)
        if name is None:
            raise KsqlProtocolError(f"{part.strip()!r} is no column of a ksqlDB schema")
        yield name[1].replace("``", "`"), part[name.end() :].strip()


def _split_columns(text: str) -> Iterable[str]:
    """Split at the commas outside of names, brackets and parentheses."""
    depth, is_quoted, start = 0, False, 0
    for index, char in enumerate(text):
        if char == "`":
            is_quoted = not is_quoted
        elif not is_quoted and char in "<(":
            depth += 1
        elif not is_quoted and char in ">)":
            depth -= 1
        elif char == "," and not is_quoted and not depth:
            yield text[start:index]
            start = index + 1
    if text[start:].strip():
        yield text[start:]


class _JsonSplitter:
    """Split a body into its JSON texts, each as soon as it is complete."""

    def __init__(self) -> None:
        # A bytearray, so that a row that comes in 1,000 pieces is not copied 1,000 times.
        self._buffer = bytearray()
        self._is_array: bool | None = None  # None until the first byte came
        self._is_closed = False  # whether the array's end came
        # The state of the scan: the bytes of the buffer that were scanned, the brackets that are
        # open there, and whether a string is.
        self._scanned = self._depth = 0
        self._is_quoted = False

    @property
    def pending(self) -> int:
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
        rest = bytes(self._buffer.strip())
        self._buffer.clear()
        if (rest and not rest.endswith((b"]", b"}"))) or (self._is_array and not self._is_closed):
            raise KsqlProtocolError(f"the answer of ksqlDB was cut in the middle, at {rest[:60]!r}")
        return [rest] if rest else []

    def _take_lines(self) -> list[bytes]:
        end = self._buffer.rfind(b"\n", self._scanned)
        lines = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        self._scanned = len(self._buffer)
        return [line for line in lines.split(b"\n") if line.strip()]

    def _take_elements(self) -> list[bytes]:
        """Return the complete elements of the array, without the commas and line breaks between."""
        elements: list[bytes] = []
        start, position = 0, self._scanned
        while (mark := _MARKS.search(self._buffer, position)) is not None:
            position, char = mark.end(), bytes(mark[0])
            if char == b"\\":
                position += 1  # skip what it escapes, which may be a quote or a backslash
            elif char == b'"':
                self._is_quoted = not self._is_quoted
            elif self._is_quoted:
                continue
            elif char in b"[{":
                self._depth += 1
            elif self._depth == 0:  # the array's own end
                self._is_closed, start, position = True, len(self._buffer), len(self._buffer)
            else:
                self._depth -= 1
                if self._depth == 0:
                    elements.append(bytes(self._buffer[start:position]).lstrip(b", \r\n\t"))
                    start = position
        # An escape may be the last byte: then what it escapes is skipped in the next piece.
        self._scanned = max(position, len(self._buffer)) - start
        del self._buffer[:start]
        return elements
