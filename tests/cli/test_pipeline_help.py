"""What `gateway pipeline` teaches: by its help, by what a shell completes, and of mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commands import complete
from typer.main import get_command
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.pipeline import pipeline

COMMANDS = sorted(get_command(pipeline).commands)

CONFIG = """
kafka: {servers: ["localhost:1"]}
pipelines:
  checkpoints: checkpoints
  jobs:
    - {name: visits, type: sessions, from: {topic: clicks, value: {fields: {user: string}}},
       by: [user], to: {topic: visits}}
    - {name: visitors, type: sessions, from: {topic: clicks, value: {fields: {user: string}}},
       by: [user], to: {topic: visitors}}
    - {name: sums, type: sessions, from: {topic: clicks, value: {fields: {user: string}}},
       by: [user], to: {topic: sums}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "jobs.yaml"
    made.write_text(CONFIG)
    return made


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["pipeline", *map(str, words)])
    return done.exit_code, done.output


def complete_jobs(shell: str, line: str, position: int) -> set[str]:
    words = "\n".join(complete(shell, line, position))
    return set(re.findall(r"visits|visitors|sums|all", words))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_jobs_are_completed_from_the_file_that_is_given(file: Path, shell: str):
    line = f"gateway pipeline run -c {file} "
    assert complete_jobs(shell, line, 5) == {"visits", "visitors", "sums", "all"}
    line = f"gateway pipeline backup -c {file} vis"
    assert complete_jobs(shell, line, 5) == {"visits", "visitors"}


def test_the_file_may_stand_behind_or_be_the_usual_one_of_the_directory(file, monkeypatch):
    line = f"gateway pipeline doctor visi -c {file}"
    assert complete_jobs("bash", line, 3) == {"visits", "visitors"}
    file.rename(file.with_name("gateway.yaml"))
    monkeypatch.chdir(file.parent)
    assert complete_jobs("bash", "gateway pipeline submit a", 3) == {"all"}
    assert complete_jobs("fish", "gateway pipeline state su", 3) == {"sums"}


@pytest.mark.parametrize("text", [": : {", "pipelines: {jobs: 3}", "- 1", "pipelines: {jobs: [1]}"])
def test_a_file_without_jobs_completes_nothing_and_says_nothing(file: Path, text: str):
    file.write_text(text)
    assert complete_jobs("bash", f"gateway pipeline state -c {file} ", 5) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example_and_the_options_of_it_are_its_own(command: str):
    status, said = call(command, "--help")
    assert status == 0
    own, options = said.split("\nOptions:")
    examples = re.findall(rf"^  gateway pipeline {command}\b(.*)$", own, re.MULTILINE)
    assert examples
    for example in examples:
        words = example.partition("|")[0].split()
        assert all(word in options for word in words if word.startswith("-")), example


def test_the_list_of_commands_has_each_in_a_whole_line():
    status, said = call("--help")
    assert status == 0
    listed = said.partition("Commands:")[2].partition("Exit codes")[0]
    assert sorted(re.findall(r"^  (\w+)  ", listed, re.MULTILINE)) == COMMANDS
    assert "..." not in listed


@pytest.mark.parametrize("command", ["run", "check", "submit", "state", "doctor", "skew"])
def test_a_wrong_name_is_told_with_the_nearest(file: Path, command: str):
    status, said = call(command, "visit", "-c", file)
    assert (status, said) == (1, "gateway: there is no job 'visit'; did you mean 'visits'?\n")


def test_wrong_usage_is_2_a_wrong_configuration_78_and_a_right_one_0(file: Path, tmp_path: Path):
    assert call("run", "visits")[0] == 2
    assert call("run", "visits", "-c", tmp_path / "missing.yaml")[0] == 2
    assert call("nonsense")[0] == 2
    assert call("check", "-c", file, "--offline")[0] == 0
    assert call("list", "-c", file)[0] == 0
    file.write_text(CONFIG.replace("by: [user]", "by: [usr]"))
    for command in (["check", "--offline"], ["run", "all"], ["submit", "all", "--print"]):
        status, said = call(*command, "-c", file)
        assert status == 78
        assert re.search(rf"^{file}:\d+:\d+: .*did you mean 'user'\?$", said, re.MULTILINE), said
