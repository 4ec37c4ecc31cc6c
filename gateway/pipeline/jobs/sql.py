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

from gateway.config.source.expression import nearest

RECORD = ("_key", "_topic", "_partition", "_offset", "_timestamp")
"""What every input has beside its fields."""

_WORD = re.compile(
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


class Word(NamedTuple):
    """kind: text, quoted, number, name or sign. folded: in small letters, unless it is text."""

    kind: str
    text: str

    @property
    def folded(self) -> str:
        return self.text if self.kind in ("text", "quoted") else self.text.lower()

    @property
    def names(self) -> bool:
        return self.kind in ("name", "quoted")


def words(sql: str) -> list[Word]:
    """In order, without blanks and comments."""
    found = ((match.lastgroup or "", match) for match in _WORD.finditer(sql))
    return [Word(kind, match.group(kind)) for kind, match in found if kind != "gap"]


def named(sql: str) -> Iterator[str]:
    """The columns that an expression names, as far as that can be told: not what is called, not
    the fields of a column (`a.b` names a), nor the parameters of a lambda."""
    found = words(sql)
    bound = set(_parameters(found))
    for before, word, after in zip([_NONE, *found], found, [*found[1:], _NONE], strict=False):
        called = after.text in ("(", "->", "=>") or before.text in (".", "::")
        keyword = word.kind == "name" and word.folded in _KEYWORDS
        renamed = before.folded == "as"
        if word.names and not called and not keyword and not renamed and word.text not in bound:
            yield word.text


_NONE = Word("sign", "")


def _parameters(found: Sequence[Word]) -> Iterator[str]:
    for at, word in enumerate(found):
        if word.text == "->":
            before = reversed(found[:at])
            if found[at - 1].names:
                yield found[at - 1].text
            elif found[at - 1].text == ")":
                for each in before:
                    if each.text == "(":
                        break
                    if each.names:
                        yield each.text


def lacking(where: str, names: Iterable[str], columns: Mapping[str, str]) -> Iterator[str]:
    """A problem for each name that is no column. columns: what is known of them, nothing if
    empty; Spark does not look at the case."""
    known = {*columns, *RECORD}
    folded = {column.lower() for column in known}
    for name in dict.fromkeys(names):
        if columns and name.lower() not in folded:
            yield f"{where}: there is no column '{name}'; {nearest(name, known)}"


def tables(found: Sequence[Word]) -> Iterator[str]:
    """The tables a query reads, by the name of one part: not those it defines in WITH, not
    functions, not `catalog.schema.table`, which are tables of Spark's own."""
    own = {name.lower() for name in _defined(found)}
    for at in _sources(found):
        word, after = found[at], found[at + 1 : at + 2]
        qualified = bool(after) and after[0].text in (".", "(")
        special = not word.names or word.folded in ("lateral", "values")
        if not (special or qualified or word.text.lower() in own):
            yield word.text


def _defined(found: Sequence[Word]) -> Iterator[str]:
    """`x AS (SELECT` and `x (a, b) AS (SELECT`, wherever they stand."""
    for at, (word, after) in enumerate(pairwise(found)):
        opens = [each.folded for each in found[at + 2 : at + 4]]
        if after.folded == "as" and opens[:1] == ["("] and set(opens[1:]) & _BEGINS:
            yield from _defined_name(found[: at + 1], word)


_BEGINS = frozenset(("select", "with", "from", "values", "("))
_ENDS = frozenset(("where", "group", "having", "order", "union", "select", "window", "limit"))


def _defined_name(before: Sequence[Word], word: Word) -> Iterator[str]:
    if word.names:
        yield word.text
    elif word.text == ")":
        opened = max((at for at, each in enumerate(before) if each.text == "("), default=0)
        if opened and before[opened - 1].names:
            yield before[opened - 1].text


def _sources(found: Sequence[Word]) -> Iterator[int]:
    """Where a name of a table is due: after FROM, JOIN, and the commas of a FROM."""
    stack: list[tuple[bool, bool]] = []  # of each bracket: are we in a query, in its FROM
    query, source = True, False
    for at, word in enumerate(found):
        before = found[at - 1].folded if at else ""
        if word.text == "(":
            stack.append((query, source))
            inner = found[at + 1].folded if at + 1 < len(found) else ""
            nested = source and before in ("from", "join", ",", "(")
            query = inner in ("select", "with", "from") or nested
            source = nested and inner not in ("select", "with", "from")
            if source and inner != "(":
                yield at + 1
        elif word.text == ")" and stack:
            query, source = stack.pop()
        elif query and word.folded == "from" and before != "distinct":
            source = True
            yield from _due(found, at)
        elif query and (word.folded == "join" or (source and word.text == ",")):
            yield from _due(found, at)
        elif word.kind == "name" and word.folded in _ENDS:
            source = False


def _due(found: Sequence[Word], at: int) -> Iterator[int]:
    if at + 1 < len(found) and found[at + 1].text != "(":
        yield at + 1
