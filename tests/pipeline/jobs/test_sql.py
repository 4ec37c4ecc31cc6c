from __future__ import annotations

import pytest

from gateway.pipeline.jobs.sql import check_columns, iter_columns, iter_tables, tokenize


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("select 1 from a, b left join c using (x), d", ["a", "b", "c", "d"]),
        ("SELECT * FROM (a JOIN b ON a.x = b.x) WHERE x IN (SELECT y FROM c)", ["a", "b", "c"]),
        ("FROM orders |> WHERE amount > 1", ["orders"]),
        ("select trim(both from x), extract(year from t) from `my t`", ["my t"]),
        ("SELECT 1 FROM a -- FROM b\n /* FROM c */ WHERE x = ' FROM d'", ["a"]),
        ("WITH t AS (SELECT * FROM a), u(x) AS (SELECT 2) SELECT * FROM t JOIN u", ["a"]),
        ("SELECT 1 FROM a UNION ALL SELECT 2 FROM b", ["a", "b"]),
        ("SELECT x FROM a LATERAL VIEW explode(xs) AS x, LATERAL explode(ys)", ["a"]),
        ("SELECT * FROM range(3), catalog.db.t, VALUES (1)", []),
        ("SELECT x IS NOT DISTINCT FROM y FROM a", ["a"]),
    ],
)
def test_tables_are_what_topics_must_be_there_for(sql: str, read: list[str]) -> None:
    assert list(iter_tables(tokenize(sql))) == read


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("sum(amount)", ["amount"]),
        ("count(*) FILTER (WHERE `a b` > 1 AND status = 'paid')", ["a b", "status"]),
        ("max(cast(a.b AS decimal(10, 2)))", ["a"]),
        ("transform(collect_list(x), y -> y + z)", ["x", "z"]),
        ("aggregate(xs, 0, (a, b) -> a + b)", ["xs"]),
        ("count(DISTINCT u) + INTERVAL 1 DAY", ["u"]),
        ("first(x) IGNORE NULLS", ["x"]),
        ("1.5e3 + 'text' || \"text\"", []),
    ],
)
def test_columns_are_named_by_what_is_no_call_no_keyword_and_no_parameter(sql, columns):
    assert list(iter_columns(sql)) == columns


def test_a_lacking_column_is_told_once_and_case_does_not_matter() -> None:
    assert list(check_columns("by", ["Amount", "amont", "amont", "_key"], {"amount": "int"})) == [
        "by: there is no column 'amont'; did you mean 'amount'?"
    ]
