"""Nothing of a migrated file is dropped silently, and what is written passes `gateway check`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from support.migrations import list_sources, migrate_file
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.migrate import migrate_source
from gateway.cli.migrate.report import (
    UNKNOWN,
    MigrationReport,
    OutcomeKind,
    Source,
    iter_leaves,
    read_source,
)
from gateway.cli.migrate.validation import build_example_environment
from gateway.config import loads
from gateway.config.source.problems import format_loc
from gateway.errors import GatewayError

SOURCES = list_sources()
ADDED = "notOfThisFormat"


VALUES = {file: read_source(file).values for file in SOURCES}
# Each example reads and checks a whole configuration.
PATIENT: Any = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@pytest.fixture(params=SOURCES, ids=lambda file: file.name)
def source(request: pytest.FixtureRequest) -> Path:
    file: Path = request.param
    return file


def test_each_leaf_of_a_source_is_in_the_report(source: Path):
    migration = migrate_file(source)
    leaves = {loc for loc, _ in iter_leaves(read_source(source).values)}
    assert leaves == set(migration.report.outcomes)
    for loc, outcome in migration.report.outcomes.items():
        assert bool(outcome.reason) == (outcome.kind is not OutcomeKind.CARRIED), loc


def test_what_is_said_to_be_carried_is_in_the_configuration(source: Path):
    migration = migrate_file(source)
    for loc, outcome in migration.report.outcomes.items():
        if outcome.kind is OutcomeKind.CARRIED:
            assert migration.draft.get(outcome.target) is not None, (loc, outcome.target)


def test_every_key_of_a_fixture_is_known(source: Path):
    unknown = [
        path for path, reason in migrate_file(source).list_omitted().items() if reason == UNKNOWN
    ]
    assert unknown == []


def test_what_is_omitted_stands_in_the_comments_of_the_file(source: Path):
    migration = migrate_file(source)
    comments = _join_comments(migration.text)
    for omission in migration.report.omissions:
        assert format_loc(omission.loc) in comments
        assert " ".join(omission.reason.split()) in comments


def test_the_values_of_the_file_are_those_that_were_built(source: Path):
    migration = migrate_file(source)
    assert YAML(typ="safe").load(migration.text) == migration.values


def test_a_source_is_migrated_by_the_command_and_passes_check(source: Path, tmp_path: Path):
    output = tmp_path / "gateway.yaml"
    migrated = CliRunner().invoke(app, ["migrate", str(source), "-o", str(output)])
    assert migrated.exit_code == 0, migrated.output
    draft = migrate_file(source, output).draft
    environ = dict(build_example_environment(draft, source))
    checked = CliRunner().invoke(app, ["check", str(output)], env=environ)
    assert checked.exit_code == 0, checked.output


def test_no_secret_is_written(source: Path):
    text = migrate_file(source).text
    assert "secret-of-a-test" not in text


@settings(max_examples=20, **PATIENT)
@given(data=st.data())
def test_a_key_that_nobody_knows_is_reported_wherever_it_stands(data: st.DataObject):
    file = data.draw(st.sampled_from(SOURCES))
    values = copy.deepcopy(VALUES[file])
    places = list(_iter_mappings(values))
    mapping = data.draw(st.sampled_from(places))
    mapping[ADDED] = data.draw(st.sampled_from(["x", 5, True, None, [], {}, ["x"], {"a": "x"}]))
    report = _migrate_values(file, values)
    for loc, outcome in report.outcomes.items():
        if ADDED in loc:
            assert outcome.kind is OutcomeKind.OMITTED or _is_kept_whole(loc), loc


@settings(max_examples=30, **PATIENT)
@given(data=st.data())
def test_a_damaged_source_gives_a_valid_configuration_or_an_error(data: st.DataObject):
    """Any value may be of any type: what cannot be used is reported, and nothing is raised."""
    file = data.draw(st.sampled_from(SOURCES))
    values = copy.deepcopy(VALUES[file])
    for _ in range(data.draw(st.integers(1, 3))):
        leaves = [loc for loc, _ in _iter_places(values)]
        loc = data.draw(st.sampled_from(leaves))
        junk: Any = st.sampled_from(["", "x y", "/", 0, -1, 1e400, True, None, [], {}, [{}], "${x"])
        _set(values, loc, data.draw(junk))
    _migrate_values(file, values)


def _is_kept_whole(loc: tuple[str | int, ...]) -> bool:
    """Whether a value stands in a mapping with names that users choose, which is kept whole."""
    kept = {
        *("attributes", "overrides", "headers", "guarded", "cookies", "query", "extract-headers"),
        *("transforms", "keys"),
    }
    return bool(kept & set(loc[:-1]))


def _migrate_values(file: Path, values: Any) -> MigrationReport:
    """The report on a changed file; what is written is checked."""
    source = Source(str(file), values)
    output = file.parent / "gateway.yaml"
    try:
        draft, written = migrate_source(source, file, output)
    except GatewayError:
        return MigrationReport(source)
    if written is None:
        return draft.report
    environ = build_example_environment(draft, file)
    loads(written.text, name=str(output), environ=environ)
    assert {loc for loc, _ in iter_leaves(values)} == set(draft.report.outcomes)
    return draft.report


def _iter_mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _iter_mappings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iter_mappings(item)


def _iter_places(value: Any, loc: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield all paths but that of the whole, and that of the key that says whose file it is."""
    if loc and loc != ("bindings",):
        yield loc, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _iter_places(item, (*loc, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_places(item, (*loc, index))


def _set(values: Any, loc: tuple[str | int, ...], value: Any) -> None:
    for step in loc[:-1]:
        values = values[step]
    values[loc[-1]] = value


def _join_comments(text: str) -> str:
    """The comments of a file as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("#")]
    return " ".join(" ".join(line.lstrip("# ").split()) for line in lines)
