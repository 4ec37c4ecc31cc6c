"""The little that is known of SQL without Spark: words, and which of them name tables and columns.

Enough to tell an unknown name before a JVM has started; what passes here is parsed by Spark, and
may still be refused there. Words are as Spark's lexer splits them: comments are gone, text in
quotes is one word, and so is a name in backticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway.config.source.expression import suggest

RECORD_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp")
"""What every input has beside its fields."""

_TOKEN_PATTERN = re.compile(
    r"""(?P<gap>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>r?'(?:[^'\\]|\\.|'')*'|r?"(?:[^"\\]|\\.|"")*")
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<number>\d[\w.]*)
      | (?P<name>[^\W\d]\w*)
      | (?P<sign>->|=>|::|.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)

# Words of expressions that are no columns, without those that begin a call or a clause.
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """all and any array as asc between bigint binary boolean both by byte case cast collate
    current_date current_timestamp current_user date day days dec decimal desc distinct double else
    end escape exists false filter first float following for from group hour hours ignore ilike in
    int integer interval is last leading left like localtimestamp long map millisecond milliseconds
    microsecond microseconds minute minutes month months not null nulls numeric or order over
    partition preceding quarter range real regexp respect right rlike row rows second seconds select
    short smallint some string struct then timestamp timestamp_ltz timestamp_ntz tinyint to trailing
    true unbounded variant void week weeks when where within year years""",
    )
)


class SqlToken(NamedTuple):
    """kind: text, quoted, number, name or sign. folded: in small letters, unless it is text."""

    kind: str
    text: str

    @property
    def folded_text(self) -> str:
        return self.text if self.kind in ("text", "quoted") else self.text.lower()

    @property
    def is_name(self) -> bool:
        return self.kind in ("name", "quoted")


def tokenize(sql: str) -> list[SqlToken]:
    """In order, without blanks and comments."""
    found = ((match.lastgroup or "", match) for match in _TOKEN_PATTERN.finditer(sql))
    return [SqlToken(kind, match.group(kind)) for kind, match in found if kind != "gap"]


def iter_columns(sql: str) -> Iterator[str]:
    """The columns that an expression names, as far as that can be told: not what is called, not
    the fields of a column (`a.b` names a), nor the parameters of a lambda."""
    found = tokenize(sql)
    bound = set(_iter_lambda_parameters(found))
    for before, word, after in zip(
        [_NO_TOKEN, *found], found, [*found[1:], _NO_TOKEN], strict=False
    ):
        called = after.text in ("(", "->", "=>") or before.text in (".", "::")
        keyword = word.kind == "name" and word.folded_text in _KEYWORDS
        renamed = before.folded_text == "as"
        if word.is_name and not called and not keyword and not renamed and word.text not in bound:
            yield word.text


_NO_TOKEN = SqlToken("sign", "")


def _iter_lambda_parameters(tokens: Sequence[SqlToken]) -> Iterator[str]:
    for at, word in enumerate(tokens):
        if word.text == "->":
            before = reversed(tokens[:at])
            if tokens[at - 1].is_name:
                yield tokens[at - 1].text
            elif tokens[at - 1].text == ")":
                for each in before:
                    if each.text == "(":
                        break
                    if each.is_name:
                        yield each.text


def check_columns(option: str, names: Iterable[str], columns: Mapping[str, str]) -> Iterator[str]:
    """A problem for each name that is no column. columns: what is known of them, nothing if
    empty; Spark does not look at the case."""
    known = {*columns, *RECORD_COLUMNS}
    folded = {column.lower() for column in known}
    for name in dict.fromkeys(names):
        if columns and name.lower() not in folded:
            yield f"{option}: there is no column '{name}'; {suggest(name, known)}"


def iter_tables(tokens: Sequence[SqlToken]) -> Iterator[str]:
    """The tables a query reads, by the name of one part: not those it defines in WITH, not
    functions, not `catalog.schema.table`, which are tables of Spark's own."""
    own = {name.lower() for name in _iter_cte_names(tokens)}
    for at in _iter_table_indexes(tokens):
        word, after = tokens[at], tokens[at + 1 : at + 2]
        qualified = bool(after) and after[0].text in (".", "(")
        special = not word.is_name or word.folded_text in ("lateral", "values")
        if not (special or qualified or word.text.lower() in own):
            yield word.text


def _iter_cte_names(tokens: Sequence[SqlToken]) -> Iterator[str]:
    """`x AS (SELECT` and `x (a, b) AS (SELECT`, wherever they stand."""
    for at, (word, after) in enumerate(pairwise(tokens)):
        opens = [each.folded_text for each in tokens[at + 2 : at + 4]]
        if (
            after.folded_text == "as"
            and opens[:1] == ["("]
            and set(opens[1:]) & _QUERY_START_KEYWORDS
        ):
            yield from _iter_cte_name(tokens[: at + 1], word)


_QUERY_START_KEYWORDS = frozenset(("select", "with", "from", "values", "("))
_FROM_END_KEYWORDS = frozenset(
    ("where", "group", "having", "order", "union", "select", "window", "limit")
)


def _iter_cte_name(before: Sequence[SqlToken], token: SqlToken) -> Iterator[str]:
    if token.is_name:
        yield token.text
    elif token.text == ")":
        opened = max((at for at, each in enumerate(before) if each.text == "("), default=0)
        if opened and before[opened - 1].is_name:
            yield before[opened - 1].text


def _iter_table_indexes(tokens: Sequence[SqlToken]) -> Iterator[int]:
    """Where a name of a table is due: after FROM, JOIN, and the commas of a FROM."""
    stack: list[tuple[bool, bool]] = []  # of each bracket: are we in a query, in its FROM
    query, source = True, False
    for at, word in enumerate(tokens):
        before = tokens[at - 1].folded_text if at else ""
        if word.text == "(":
            stack.append((query, source))
            inner = tokens[at + 1].folded_text if at + 1 < len(tokens) else ""
            nested = source and before in ("from", "join", ",", "(")
            query = inner in ("select", "with", "from") or nested
            source = nested and inner not in ("select", "with", "from")
            if source and inner != "(":
                yield at + 1
        elif word.text == ")" and stack:
            query, source = stack.pop()
        elif query and word.folded_text == "from" and before != "distinct":
            source = True
            yield from _iter_next_index(tokens, at)
        elif query and (word.folded_text == "join" or (source and word.text == ",")):
            yield from _iter_next_index(tokens, at)
        elif word.kind == "name" and word.folded_text in _FROM_END_KEYWORDS:
            source = False


def _iter_next_index(tokens: Sequence[SqlToken], index: int) -> Iterator[int]:
    if index + 1 < len(tokens) and tokens[index + 1].text != "(":
        yield index + 1
