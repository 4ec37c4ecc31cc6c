"""Read SQL without Spark: tokens, the names of tables and columns, and the measures of sessions.

This suffices to report an unknown name before a JVM has started. Spark parses the SQL later, and
may refuse it then. The tokens are those of Spark's lexer: there are no comments, text in quotes is
one token, and so is a name in backticks.

`session_processor` merges the measures of session pieces in Python, if they are of
`MERGEABLE_KINDS`. `first` and `last` go by event time, and for equal times by partition and offset,
so that a replay that reads the events in another order has the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gateway.config.source.substitution import suggest
from gateway.pipeline.inputs.types import RECORD_COLUMN_TYPES

from . import sql

_TOKEN_PATTERN = re.compile(
    r"""(?P<gap>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>r?'(?:[^'\\]|\\.|'')*'|r?"(?:[^"\\]|\\.|"")*")
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<number>\d[\w.]*)
      | (?P<name>[^\W\d]\w*)
      | (?P<sign>->|=>|::|.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)

# Names in expressions that are not columns. Functions are not among them: `iter_columns` knows them
# by their parenthesis.
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
    """A token of SQL.

    Attributes:
        kind: `text` (a literal in quotes), `quoted` (a name in backticks), `number`, `name` (also
            keywords and functions) or `sign`.
    """

    kind: str
    text: str

    @property
    def folded_text(self) -> str:
        return self.text if self.kind in ("text", "quoted") else self.text.lower()

    @property
    def is_name(self) -> bool:
        return self.kind in ("name", "quoted")


def tokenize(sql: str) -> list[SqlToken]:
    matches = ((match.lastgroup or "", match) for match in _TOKEN_PATTERN.finditer(sql))
    return [SqlToken(kind, match.group(kind)) for kind, match in matches if kind != "gap"]


def iter_columns(sql: str) -> Iterator[str]:
    """Yield the names of the columns in an expression, as far as they can be recognized.

    These are no functions, no fields of a column (`a.b` has the column `a`), and no parameters of a
    lambda function.
    """
    tokens = tokenize(sql)
    parameters = set(_iter_lambda_parameters(tokens))
    for before, token, after in zip(
        [_NO_TOKEN, *tokens], tokens, [*tokens[1:], _NO_TOKEN], strict=False
    ):
        if (
            not token.is_name
            or after.text in ("(", "->", "=>")  # a function, or a parameter
            or before.text in (".", "::")  # a field, or a type
            or before.folded_text == "as"  # a type, or the name of the result
            or (token.kind == "name" and token.folded_text in _KEYWORDS)
            or token.text in parameters
        ):
            continue
        yield token.text


_NO_TOKEN = SqlToken("sign", "")


def _iter_lambda_parameters(tokens: Sequence[SqlToken]) -> Iterator[str]:
    """Yield the names in `x -> ...` and `(x, y) -> ...`."""
    for index, token in enumerate(tokens):
        if token.text == "->":
            before = reversed(tokens[:index])
            if tokens[index - 1].is_name:
                yield tokens[index - 1].text
            elif tokens[index - 1].text == ")":
                for parameter in before:
                    if parameter.text == "(":
                        break
                    if parameter.is_name:
                        yield parameter.text


def check_columns(option: str, names: Iterable[str], columns: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each name that is not a column. Case does not count, as in Spark."""
    known = {*columns, *RECORD_COLUMN_TYPES}
    folded = {column.lower() for column in known}
    for name in dict.fromkeys(names):
        if columns and name.lower() not in folded:
            yield f"{option}: there is no column '{name}'; {suggest(name, known)}"


def iter_tables(tokens: Sequence[SqlToken]) -> Iterator[str]:
    """Yield the names of the tables that a query reads.

    These are no tables that the query defines in WITH, no functions, and no names with several
    parts (`catalog.schema.table`), which are tables that Spark knows.
    """
    cte_names = {name.lower() for name in _iter_cte_names(tokens)}
    for index in _iter_table_indexes(tokens):
        token, after = tokens[index], tokens[index + 1 : index + 2]
        is_qualified = bool(after) and after[0].text in (".", "(")
        is_special = not token.is_name or token.folded_text in ("lateral", "values")
        if not (is_special or is_qualified or token.text.lower() in cte_names):
            yield token.text


def _iter_cte_names(tokens: Sequence[SqlToken]) -> Iterator[str]:
    """Yield the names of common table expressions: `x AS (SELECT` and `x (a, b) AS (SELECT`."""
    for index, (token, after) in enumerate(pairwise(tokens)):
        following = [each.folded_text for each in tokens[index + 2 : index + 4]]
        if (
            after.folded_text == "as"
            and following[:1] == ["("]
            and set(following[1:]) & _QUERY_START_KEYWORDS
        ):
            yield from _iter_cte_name(tokens[: index + 1], token)


_QUERY_START_KEYWORDS = frozenset(("select", "with", "from", "values", "("))
_FROM_END_KEYWORDS = frozenset(
    ("where", "group", "having", "order", "union", "select", "window", "limit")
)


def _iter_cte_name(before: Sequence[SqlToken], token: SqlToken) -> Iterator[str]:
    """Yield the name of the expression whose AS comes after `token`, the last of `before`."""
    if token.is_name:
        yield token.text
    elif token.text == ")":  # of a list of columns
        start = max((index for index, each in enumerate(before) if each.text == "("), default=0)
        if start and before[start - 1].is_name:
            yield before[start - 1].text


def _iter_table_indexes(tokens: Sequence[SqlToken]) -> Iterator[int]:
    """Yield the indexes of table names: after FROM, after JOIN, and after the commas of a FROM."""
    # For the current parenthesis, and on the stack for those around it: whether it contains a
    # query, and whether the token is in the FROM clause of that. `EXTRACT(DAY FROM at)` is none.
    in_query, in_from = True, False
    stack: list[tuple[bool, bool]] = []
    for index, token in enumerate(tokens):
        before = tokens[index - 1].folded_text if index else ""
        if token.text == "(":
            stack.append((in_query, in_from))
            inner = tokens[index + 1].folded_text if index + 1 < len(tokens) else ""
            is_table = in_from and before in ("from", "join", ",", "(")  # a subquery or a join
            in_query = inner in ("select", "with", "from") or is_table
            in_from = is_table and inner not in ("select", "with", "from")
            if in_from and inner != "(":
                yield index + 1
        elif token.text == ")" and stack:
            in_query, in_from = stack.pop()
        elif in_query and token.folded_text == "from" and before != "distinct":
            in_from = True
            yield from _iter_next_index(tokens, index)
        elif in_query and (token.folded_text == "join" or (in_from and token.text == ",")):
            yield from _iter_next_index(tokens, index)
        elif token.kind == "name" and token.folded_text in _FROM_END_KEYWORDS:
            in_from = False


def _iter_next_index(tokens: Sequence[SqlToken], index: int) -> Iterator[int]:
    """Yield the next index, unless a parenthesis begins there or the tokens end."""
    if index + 1 < len(tokens) and tokens[index + 1].text != "(":
        yield index + 1


MERGEABLE_KINDS = ("count", "sum", "min", "max", "first", "last")
"""The aggregates that can be merged."""
ORDERED_KINDS = ("first", "last")
"""The aggregates that depend on the order of events."""

_CALL_PATTERN = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)


class Measure(NamedTuple):
    """A measure of a job.

    Attributes:
        kind: One of `MERGEABLE_KINDS`, or None if the measure cannot be merged.
        argument: The SQL of the aggregate's argument, `*` for all rows; the whole expression if
            `kind` is None and it is not a single call.
    """

    name: str
    expression: str
    kind: str | None
    argument: str

    @property
    def is_ordered(self) -> bool:
        return self.kind in ORDERED_KINDS


def parse_measures(settings: Mapping[str, str]) -> tuple[Measure, ...]:
    return tuple(_parse_measure(name, text) for name, text in settings.items())


def check_measures(settings: Mapping[str, str], columns: Mapping[str, str]) -> Iterable[str]:
    """Yield a problem for each unknown column of a measure, if the columns are known."""
    for name, text in settings.items():
        yield from sql.check_columns(f"measures.{name}", sql.iter_columns(text), columns)


def _parse_measure(name: str, expression: str) -> Measure:
    match = _CALL_PATTERN.fullmatch(expression)
    if match is None or not _is_single_call(match[2]):
        return Measure(name, expression, None, expression)
    kind, argument = match[1].lower(), match[2].strip()
    is_distinct = argument[:8].lower().strip() == "distinct"
    has_several = any(token.text == "," for token in _iter_top_level_tokens(argument))
    is_mergeable = kind in MERGEABLE_KINDS and not is_distinct and not has_several and argument
    return Measure(name, expression, kind if is_mergeable else None, argument)


def _is_single_call(arguments: str) -> bool:
    """Return whether the first parenthesis of an expression is closed by its last one.

    This is not so for `sum(a) / sum(b)`. The text between these two parentheses is given.
    """
    depth = 0
    for token in sql.tokenize(arguments):
        depth += (token.text == "(") - (token.text == ")")
        if depth < 0:
            return False
    return depth == 0


def _iter_top_level_tokens(argument: str) -> Iterable[sql.SqlToken]:
    depth = 0
    for token in sql.tokenize(argument):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            yield token


def describe_unsupported_key(name: str) -> str:
    problem = f"by: '{name}' is not a plain value, which emit: updates and maxLength need"
    return f"{problem}; select a part of it in a job before this one, or convert it with to_json"


def describe_unsupported_measure(measure: Measure, type_name: str) -> str:
    problem = f"emit: updates and maxLength do not support {measure.kind} of {type_name}"
    return f"measures.{measure.name}: {problem}; use a plain value, such as a part of it"


def format_interval(seconds: float) -> str:
    """Return a duration as Spark's SQL writes it."""
    return f"{round(1e6 * seconds)} microseconds"
