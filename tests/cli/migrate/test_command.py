"""The command `gateway migrate`: what it writes, lists and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.migrations import SOURCES
from typer.testing import CliRunner, Result

from gateway.cli import app

ZILLA = SOURCES / "http.kafka.crud.yaml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def migrate(*arguments: object) -> Result:
    words = ["migrate", *map(str, arguments)]
    return CliRunner().invoke(app, words, prog_name="gateway")


def write(folder: Path, text: str, name: str = "source.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_file_that_exists_is_kept_without_force(folder: Path):
    output = write(folder, "mine\n", "gateway.yaml")
    refused = migrate(ZILLA)
    assert (refused.exit_code, output.read_text()) == (1, "mine\n")
    assert "--force" in refused.stderr
    assert migrate(ZILLA, "--force").exit_code == 0
    assert output.read_text() != "mine\n"


def test_the_source_is_never_replaced(folder: Path):
    source = write(folder, ZILLA.read_text(), "gateway.yaml")
    refused = migrate(source, "--force")
    assert (refused.exit_code, source.read_text()) == (1, ZILLA.read_text())


def test_standard_output_has_the_configuration_alone(folder: Path):
    written = migrate(ZILLA, "-o", "-")
    assert written.exit_code == 0
    assert written.stdout.startswith("# yaml-language-server")
    assert "KAFKA_BOOTSTRAP_SERVER" in written.stderr
    assert list(folder.iterdir()) == []


def test_each_omission_is_a_line_with_its_place(folder: Path):
    lines = migrate(ZILLA).stderr.splitlines()
    number = 1 + ZILLA.read_text().splitlines().index("          acks: leader_only")
    place = f"{ZILLA}:{number}: bindings.http_to_kafka.routes[0].with.acks: "
    assert any(line.startswith(place) for line in lines)


def test_all_lists_what_was_carried_too(folder: Path):
    name = "bindings.http_to_kafka.routes[0].with.topic"
    assert name not in migrate(ZILLA).stderr
    listed = migrate(ZILLA, "--force", "--all").stderr
    assert f"{name}: is routes[0].topic" in listed


def test_the_variables_that_must_be_set_are_printed(folder: Path):
    assert "KAFKA_BOOTSTRAP_SERVER" in migrate(ZILLA).stdout


@pytest.mark.parametrize(
    ("text", "exit_code", "message"),
    [
        ("a: [", 78, "source.yaml:"),
        ("a: 1\na: 2\n", 78, "source.yaml:2:1: duplicate key 'a'"),
        ("colour: red\n", 1, "is no configuration of Zilla"),
        ("kafka: {}\nroutes: []\n", 1, "already"),
        ("name: x\nbindings: {q: {type: mqtt, kind: server}}\n", 1, "nothing to write"),
        ("", 78, "source.yaml:1:1"),
    ],
)
def test_what_cannot_be_migrated_is_refused(folder: Path, text: str, exit_code: int, message: str):
    refused = migrate(write(folder, text))
    assert refused.exit_code == exit_code, refused.output
    assert message in refused.stderr
    assert not (folder / "gateway.yaml").exists()


def test_a_file_that_is_missing_is_wrong_usage(folder: Path):
    assert migrate("missing.yaml").exit_code == 2
