"""Every code block of the documentation is checked, each as `support/doc_blocks.py` says."""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from docgen.configuration import load_examples
from ruamel.yaml import YAML
from support.clients.node_sse import ensure_installed
from support.doc_blocks import (
    DOCS,
    KINDS,
    ROOT,
    RUN_KINDS,
    Block,
    list_checked_pages,
    list_pages,
    parse_blocks,
    read_blocks,
)
from support.doc_commands import check_command, iter_commands
from support.doc_configs import complete_config, load_config, load_yaml
from support.sse import parse_stream

from gateway.cli.cluster_check import FindingState
from gateway.config import Settings, loads
from gateway.hub.wires.control_events import CONTROL_EVENTS
from gateway.web.app.assets import JS_DIRECTORY
from gateway.web.demo import CONFIG
from gateway.web.websocket.messages import MESSAGE_MODELS

BLOCKS = [block for page in list_checked_pages() for block in read_blocks(page)]
GENERATED = DOCS / "reference" / "configuration"
SERVER_MESSAGES = {*CONTROL_EVENTS, "records", "delete", "produced", "renewed", "pong"}


def of_kind(*kinds: str, without: Path | None = None) -> Any:
    """Parametrize a test with the blocks of these kinds."""
    found = [b for b in BLOCKS if b.kind in kinds and (without is None or without != b.page.parent)]
    return pytest.mark.parametrize("block", found, ids=lambda block: block.place)


def test_every_block_says_how_it_is_checked():
    unchecked = [f"{b.place}: {b.language} {b.kind}" for b in BLOCKS if b.kind not in KINDS]
    assert not unchecked, "see tests/support/doc_blocks.py"


def test_only_titles_and_languages_stand_behind_a_fence():
    for block in BLOCKS:
        assert block.language, f"{block.place}: say the language"


@of_kind("config", without=GENERATED)
def test_configurations_are_loaded_without_a_warning(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = complete_config(block.text, block.attributes.get("at", ""))
    _, warnings = load_config(config, tmp_path, monkeypatch)
    wanted = block.attributes.get("warns")
    assert not warnings if wanted is None else any(wanted in each for each in warnings)


def contains(whole: Any, part: Any) -> bool:
    """Whether a part was cut from it: of mappings some members, of lists some items."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and contains(whole[name], each) for name, each in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(contains(item, each) for item in whole) for each in part)
    return bool(whole == part)


@pytest.mark.parametrize(
    "block",
    [b for b in BLOCKS if b.kind == "config" and b.page.parent == GENERATED],
    ids=lambda block: block.place,
)
def test_examples_of_the_reference_are_cut_from_configurations_that_are_tested(block: Block):
    part = load_yaml(block.text)
    wholes = [load_yaml(json.dumps(each)) for each in load_examples().values()]
    first = [complete_config(b.text) for b in read_blocks(GENERATED / "index.md")[:1]]
    is_own = block.page.name == "index.md"  # written by hand, with variables
    assert is_own or any(contains(whole, part) for whole in [*wholes, *first])


@pytest.mark.parametrize("name", load_examples())
def test_configurations_that_examples_are_cut_from_are_loaded_without_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = load_yaml(json.dumps(load_examples()[name]))
    _, warnings = load_config(config, tmp_path, monkeypatch)
    assert warnings == []


def load_page_settings(page: Path, directory: Path, patch: pytest.MonkeyPatch) -> list[Settings]:
    """What is configured on a page, and the demo."""
    found = [loads(CONFIG)]
    for block in read_blocks(page):
        if block.kind == "config":
            config = complete_config(block.text, block.attributes.get("at", ""))
            found.append(load_config(config, directory, patch)[0])
    return found


@of_kind("commands", "broker", "serve", "run", "stream")
def test_commands_exist_with_their_options(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = load_page_settings(block.page, tmp_path, monkeypatch)
    patterns = [when.pattern for each in settings for route in each.routes for when in route.when]
    commands = list(iter_commands(block.text))
    assert commands
    for words in commands:
        check_command(
            words, tmp_path, lambda path: any(p.match(path) is not None for p in patterns)
        )


@of_kind("help")
def test_commands_within_help_texts_exist(block: Block, tmp_path: Path):
    found = re.findall(r"(?:^|  )gateway (\S+(?: \S+)*)", block.text, re.M)
    for line in found:
        for words in iter_commands(f"gateway {line}"):
            check_command(words, tmp_path, lambda path: True)


INLINE = [
    (page, code.replace("\n", " "))
    for page in list_checked_pages()
    for code in re.findall(
        r"`(gateway [a-z][^`]*)`", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    )
    if "[" not in code and page.name != "cli.md"
]


@pytest.mark.parametrize(("page", "code"), sorted(set(INLINE)), ids=lambda value: str(value))
def test_commands_in_running_text_exist_with_their_options(page: Path, code: str, tmp_path: Path):
    """Their arguments may be left out, and some are placeholders in capitals."""
    words = code.split()[1:]
    reference = (DOCS / "reference" / "cli.md").read_text()
    headings = [f"## `gateway {' '.join(words[:count])}`" for count in (2, 1)]
    found = [heading for heading in headings if heading in reference]
    assert found, code
    section = reference.partition(found[0])[2].partition("\n## ")[0]
    for word in words:
        if word.startswith("-"):
            option = word.partition("=")[0]
            assert re.search(rf"[`\s]{re.escape(option)}\b", section), word


@of_kind("json")
def test_json_can_be_parsed(block: Block):
    if block.language == "json":
        json.loads(block.text)
    else:
        assert [json.loads(line) for line in block.text.splitlines() if line.strip()]


@of_kind("yaml", "toml", "ini")
def test_files_of_other_programs_can_be_parsed(block: Block):
    match block.kind:
        case "yaml":
            list(YAML(typ="safe").load_all(block.text))
        case "toml":
            tomllib.loads(block.text)
        case "ini":
            configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)


def normalize(lines: Iterable[str]) -> str:
    return "\n".join(line.strip() for line in lines if line.strip())


@of_kind("file")
def test_parts_of_files_are_what_the_files_say(block: Block):
    path = ROOT / block.words[0]
    assert normalize(block.text.splitlines()) in normalize(path.read_text().splitlines())


def read_source() -> str:
    source = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", source)  # texts over several lines are one


@of_kind("log")
def test_lines_of_the_log_begin_as_the_source_has_them(block: Block):
    source = read_source()
    for line in block.text.splitlines():
        message = re.sub(r"^\d{4}-\S+ \S+ [A-Z]+ [\w.]+: ", "", line.strip())
        phrase = re.split(r"[\w-]+=|\d|https?:|['\"(:]|\.\.\.", message, maxsplit=1)[0].strip()
        assert not phrase or phrase in source, line


@of_kind("findings")
def test_findings_have_states_and_subjects_that_there_are(block: Block):
    source = (ROOT / "gateway/cli/cluster_check/front.py").read_text()
    literals = re.findall(r'subject(?:, scheme)? = f?"([^"]+)"', source)
    subjects = [re.sub(r"\\{\w+\\}", r"\\w+", re.escape(literal)) for literal in literals]
    for line in block.text.splitlines():
        state, finding = line.split(maxsplit=1)
        assert state in list(FindingState), line
        assert any(re.match(f"{subject}: ", finding) for subject in subjects), line


@of_kind("events")
def test_captured_events_have_names_and_members_that_are_sent(block: Block):
    for event in parse_stream(block.text.encode() + b"\n"):
        name = event.event_type
        if name in ("message", "delete"):
            continue
        assert name in CONTROL_EVENTS, name
        known = (CONTROL_EVENTS[name].schema or {}).get("properties", {})
        assert event.parse_json().keys() <= known.keys(), name


@of_kind("messages")
def test_captured_messages_have_types_that_there_are(block: Block):
    for direction, text in re.findall(r"^([<>]) (\{.*)$", block.text, re.M):
        (name,) = re.findall(r'^\{\s*"type":\s*"([\w-]+)"', text)
        known = MESSAGE_MODELS if direction == ">" else SERVER_MESSAGES
        assert name in known | {} if isinstance(known, dict) else name in {*known, "error"}, text
        if not re.search(r"\.\.\.\s*\}$", text):
            json.loads(text)


@of_kind("python")
def test_python_compiles_and_its_imports_exist(block: Block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, each.name) for each in node.names), ast.unparse(node)
        elif isinstance(node, ast.Import):
            for each in node.names:
                importlib.import_module(each.name)
    names = ["--isolated", "--select", "F821,F811,E9", "--quiet"]
    command = [sys.executable, "-m", "ruff", "check", *names, "-"]
    found = subprocess.run(command, input=block.text, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout


def test_python_is_typed_as_the_package_says(tmp_path: Path):
    """One run of mypy for all blocks."""
    blocks = {f"block_{n}.py": b for n, b in enumerate(BLOCKS) if b.kind == "python"}
    if not blocks:
        return
    for name, block in blocks.items():
        (tmp_path / name).write_text(block.text)
    command = [
        sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports",
        "--follow-imports=silent", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"),
        *blocks,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, name_blocks(done.stdout + done.stderr, blocks)


MODULE_NAMES = ("/gateway.js", "gateway.js", "http://127.0.0.1:8080/gateway.js")


def wrap_script(block: Block) -> str:
    """A module. `declare` in the comment names what a reader's page has, such as a function."""
    declared = "".join(
        f"/** @type {{any}} */ let {name};\n"
        if block.language in ("js", "jsx")
        else f"let {name}: any;\n"
        for name in block.attributes.get("declare", "").split(",")
        if name
    )
    text = block.text
    if block.kind == "html":
        text = "\n".join(re.findall(r"<script[^>]*>(.*?)</script>", text, re.S))
    return f"{declared}{text}\nexport {{}};\n"


@pytest.mark.needs("node", "npm")
def test_scripts_are_typed_as_the_module_says(tmp_path: Path):
    """One run of TypeScript for all blocks; each is a module."""
    blocks = {
        f"block_{n}.{b.language.replace('html', 'js')}": b
        for n, b in enumerate(BLOCKS)
        if b.kind in ("types", "html")
    }
    if not blocks:
        return
    for name, block in blocks.items():
        (tmp_path / name).write_text(wrap_script(block))
    for name in ("gateway.d.ts", "react.d.ts"):
        shutil.copy(JS_DIRECTORY / name, tmp_path)
    modules = {name: ["./gateway.d.ts"] for name in MODULE_NAMES}
    paths = {"paths": {**modules, "gateway.js/react": ["./react.d.ts"]}}
    tsc = ensure_installed() / "node_modules" / "typescript" / "bin" / "tsc"
    options = {
        "noEmit": True, "strict": True, "noImplicitAny": False, "strictNullChecks": False,
        "allowJs": True, "checkJs": True,
        "jsx": "preserve", "target": "es2022", "module": "es2022", "moduleResolution": "bundler",
        "lib": ["es2023", "dom", "dom.iterable"], "types": [], "skipLibCheck": True, **paths,
    }  # fmt: skip
    (tmp_path / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": options, "files": list(blocks)})
    )
    done = subprocess.run(
        ["node", str(tsc), "-p", "."], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, name_blocks(done.stdout + done.stderr, blocks)


def name_blocks(text: str, blocks: dict[str, Block]) -> str:
    """Where the mistakes are in the documentation."""
    for name, block in blocks.items():
        text = text.replace(name, f"{block.place} + ")
    return text


def test_blocks_that_are_run_stand_on_a_page_with_a_server_or_alone():
    for page in list_pages():
        kinds = [block.kind for block in read_blocks(page) if block.kind in RUN_KINDS]
        if "output" in kinds:
            assert kinds[0] != "output", page


def parse_one(text: str) -> Block:
    (block,) = parse_blocks(DOCS / "page.md", text)
    return block


def test_a_comment_says_how_a_block_is_checked():
    text = '<!-- check: stream until="A 1" slow -->\n```sh title="a.sh"\ncurl\n```\n'
    block = parse_one(text)
    assert (block.kind, block.words, block.attributes) == ("stream", ["slow"], {"until": "A 1"})
    assert (block.language, block.title, block.text) == ("sh", "a.sh", "curl\n")


def test_blocks_within_lists_lose_their_indentation():
    assert (
        parse_one("1. Do this:\n\n    ```yaml\n    a:\n      b: 1\n    ```\n").text
        == "a:\n  b: 1\n"
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("data: {}\n", "events"),
        ('> {"type": "ping"}\n', "messages"),
        ("a picture\n", ""),
    ],
)
def test_text_is_checked_by_what_it_looks_like(text: str, kind: str):
    assert parse_one(f"```text\n{text}```\n").kind == kind


@pytest.mark.parametrize(
    "command",
    [
        "gateway run --no-such-option",
        "gateway nothing",
        "make nothing",
        "pip install '.[nothing]'",
        "curl http://127.0.0.1:8080/nothing",
        "nothing",
    ],
)
def test_wrong_commands_are_found(command: str, tmp_path: Path):
    with pytest.raises(AssertionError):
        for words in iter_commands(command):
            check_command(words, tmp_path, lambda path: False)


def test_commands_are_found_in_pipes_and_over_lines():
    script = "echo '{\"a\": 1}' \\\n  | gateway produce orders > out.txt && ls  # why\n"
    script += "cat <<'E'\nx y\nE\nls\n"
    assert list(iter_commands(script)) == [
        ["echo", '{"a": 1}'], ["gateway", "produce", "orders"], ["ls"], ["cat"], ["ls"],
    ]  # fmt: skip
