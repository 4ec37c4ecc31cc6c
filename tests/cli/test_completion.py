"""What a shell completes: by its real protocol, and in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ask_for_completion, complete

SCRIPTS = Path(sys.executable).parent  # where `gateway` is
SHELLS = ("bash", "zsh", "fish")


def bash(script: str, home: Path) -> str:
    env = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gateway ta", ["tail"]),
        ("gateway tail --fil", ["--filter"]),
        ("gateway tail orders --from ", ["live", "earliest", "-5m"]),
        ("gateway tail orders --format ", ["pretty", "json", "value"]),
        ("gateway check --sch", ["--schema"]),
        ("gateway run --debug kafka.f", ["kafka.fetch"]),
        ("gateway sidecar --debug hub.", ["hub.fanout", "hub.reads"]),
        ("gateway token ", ["create", "check", "decode"]),
        ("gateway run --ori", ["--origin"]),
        ("gateway init --security scram", ["scram-256", "scram-512"]),
        ("gateway token decode --t", ["--topic"]),
    ],
)
def test_commands_options_and_values_are_completed(shell: str, line: str, words: list[str]):
    told = "\n".join(complete(shell, line))
    assert all(word in told for word in words), told
    assert "produce" not in told


@pytest.mark.parametrize("shell", ["zsh", "fish"])  # that of bash is run below
def test_each_shell_has_a_script_that_asks_the_command(shell: str):
    script = ask_for_completion(f"source_{shell}")
    assert f"_GATEWAY_COMPLETE=complete_{shell}" in script


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gateway tail o", ["orders", "other"]),
        ("gateway produce st", ["stock"]),
        ("gateway topics ", ["orders", "other", "stock"]),
        ("gateway run --topic st", ["stock"]),
        ("gateway token check a.b.c --guard ", ["login"]),
    ],
)
def test_names_of_the_configuration_are_completed(tmp_path: Path, line: str, words: list[str]):
    """Only jobs of pipelines were."""
    file = tmp_path / "mine.yaml"
    file.write_text("kafka: {topics: [orders, {name: other}, stock]}\nguards: {login: {}}\n")
    assert complete("bash", line, GATEWAY_CONFIG=str(file)) == words


@pytest.mark.needs("process")
def test_a_real_bash_completes(tmp_path: Path):
    source = "source <(_GATEWAY_COMPLETE=source_bash gateway)\n"
    typed = "COMP_WORDS=(gateway tail --fi)\nCOMP_CWORD=2\n_gateway_completion gateway\n"
    told = bash(f'{source}{typed}echo "${{COMPREPLY[@]}}"', tmp_path)
    assert told == "--filter --fields\n"


@pytest.mark.needs("process")
def test_it_is_installed_for_the_shell_that_asks_and_found_by_the_next(tmp_path: Path):
    assert "bash completion installed" in bash("gateway --install-completion; true", tmp_path)
    assert "_gateway_completion" in bash("gateway --show-completion; true", tmp_path)
    assert ".bash_completions/gateway.sh" in (tmp_path / ".bashrc").read_text()
    found = bash(f"source {tmp_path}/.bashrc; complete -p gateway", tmp_path)
    assert "_gateway_completion" in found


@pytest.mark.needs("process")
def test_completion_imports_nothing_that_is_slow():
    """It runs at every press of the key."""
    code = (
        "import sys\n"
        "from gateway.cli import main\n"
        "try: main()\n"
        "finally:\n"
        "    slow = ('aiokafka', 'starlette', 'httpx', 'orjson')\n"
        "    print([name for name in slow if name in sys.modules])"
    )
    env = {**os.environ, "_GATEWAY_COMPLETE": "complete_bash"}
    env |= {"COMP_WORDS": "gateway tail orders --from ", "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[0] == "live"
    assert done.stdout.splitlines()[-1] == "[]"
