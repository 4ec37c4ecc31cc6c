from __future__ import annotations

from gateway.pipeline.jobs.sql import check_columns


def test_a_lacking_column_is_told_once_and_case_does_not_matter() -> None:
    assert list(check_columns("by", ["Amount", "amont", "amont", "_key"], {"amount": "int"})) == [
        "by: there is no column 'amont'; did you mean 'amount'?"
    ]
