from __future__ import annotations

import json

import pytest

from gateway.config import loads
from gateway.errors import ConfigError


def text(ksqldb: str, more: str = "") -> str:
    return f"kafka: {{servers: [localhost:9092]}}\n{more}\nsidecar:\n  ksqldb:\n{ksqldb}"


def test_sql_may_stand_on_many_lines():
    sql = "    queries:\n      - name: q\n        query: |\n          SELECT *\n          FROM O;\n"
    settings = loads(text(sql))
    assert settings.sidecar is not None
    assert settings.sidecar.ksqldb is not None
    assert settings.sidecar.ksqldb.queries[0].query == "SELECT * FROM O;"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"name": "q", "query": "SELECT * FROM O EMIT CHANGES LIMIT 5;"}, "remove LIMIT"),
        ({"name": "q", "query": ""}, "is empty"),
        ({"name": "q", "query": "x", "queryType": "poll"}, "pull"),
        ({"name": "q", "query": "x", "batch": {"row": 5}}, "did you mean 'rows'?"),
    ],
)
def test_a_query_that_cannot_work_is_told_before_the_start(query, said):
    with pytest.raises(ConfigError, match=said):
        loads(text(f"    queries: [{json.dumps(query)}]"))


def test_a_pull_query_may_have_a_limit():
    query = {"name": "q", "queryType": "pull", "query": "SELECT * FROM O LIMIT 5"}
    assert loads(text(f"    queries: [{json.dumps(query)}]"))


def test_a_name_of_a_query_is_a_text():
    queries = json.dumps([{"name": {"a": "b"}, "query": "x"}])
    with pytest.raises(ConfigError, match="name"):
        loads(text(f"    queries: {queries}"))


def test_two_queries_have_two_names():
    queries = json.dumps([{"name": "q", "query": "x"}] * 2)
    with pytest.raises(ConfigError, match="'q' is used twice"):
        loads(text(f"    queries: {queries}"))


def test_a_password_is_nobodys_without_a_name():
    with pytest.raises(ConfigError, match="'password' needs 'username' too"):
        loads(text("    password: x"))


def test_queries_are_for_one_worker():
    queries = json.dumps([{"name": "q", "query": "x"}])
    with pytest.raises(ConfigError, match=r"set listen\.workers: 1"):
        loads(text(f"    queries: {queries}", "listen: {workers: 2}"))
