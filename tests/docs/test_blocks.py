"""Every code block of the documentation is checked, each as `support/doc_blocks.py` says."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docgen.cli import iter_commands as iter_cli_commands
from docgen.configuration import load_examples
from ruamel.yaml import YAML
from support.clients.node_sse import ensure_installed
from support.doc_blocks import (
    DOCS,
    KINDS,
    ROOT,
    RUN_KINDS,
    Block,
    explain_unrun,
    list_checked_pages,
    list_pages,
    parse_blocks,
    read_blocks,
)
from support.doc_commands import check_command, iter_commands
from support.doc_configs import complete_config, load_config, load_yaml
from support.sse import parse_stream

from gateway.cli.cluster_check import FindingState
from gateway.cli.cluster_check.front import CHECKS
from gateway.config import loads
from gateway.hub.wires.control_events import CONTROL_EVENTS
from gateway.web.demo import CONFIG
from gateway.web.http.assets import JS_DIRECTORY
from gateway.web.routing.messages import MESSAGE_MODELS

BLOCKS = [block for page in list_checked_pages() for block in read_blocks(page)]
GENERATED = DOCS / "reference" / "configuration"
COMMAND_KINDS = ("commands", "broker", "serve", "run", "stream")
CHECKED_PAGES = [
    page
    for page in list_checked_pages()
    if any(block.kind in ("config", *COMMAND_KINDS) for block in read_blocks(page))
    and page.parent != GENERATED
]
SERVER_MESSAGES = {*CONTROL_EVENTS, "records", "delete", "produced", "renewed", "pong"}


@contextmanager
def naming(block: Block) -> Iterator[None]:
    """Say of an error in which block it is."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at {block.place}")
        raise


def iter_kind(*kinds: str, blocks: Iterable[Block] = BLOCKS) -> Iterator[Block]:
    """Iterate over the blocks of these kinds; an error while one is used is named by its place."""
    found = [block for block in blocks if block.kind in kinds]
    assert found
    for block in found:
        with naming(block):
            yield block


def test_every_block_says_its_language_and_how_it_is_checked():
    unchecked = [f"{b.place}: {b.language} {b.kind}" for b in BLOCKS if b.kind not in KINDS]
    assert not unchecked, "see tests/support/doc_blocks.py"
    assert not [block.place for block in BLOCKS if not block.language]
    assert not [b.place for b in BLOCKS if b.title and not re.fullmatch(r"[\w./-]+", b.title)]


def test_blocks_that_are_not_run_are_listed():
    """See them by `pytest -rP -k not_run`."""
    reasons = {block.place: reason for block in BLOCKS if (reason := explain_unrun(block))}
    for place, reason in reasons.items():
        print(f"{place}: {reason}")
    run = [block for block in BLOCKS if block.language == "js" and block.place not in reasons]
    assert run and not [block.place for block in run if "unrun" in block.attributes]


def test_blocks_that_are_run_do_not_begin_with_an_output():
    for page in list_pages():
        kinds = [block.kind for block in read_blocks(page) if block.kind in RUN_KINDS]
        assert kinds[:1] != ["output"], page


@pytest.mark.parametrize("page", CHECKED_PAGES, ids=lambda page: page.stem)
def test_configurations_of_a_page_are_loaded_and_its_commands_exist_with_their_options(
    page, tmp_path, monkeypatch
):
    """Paths of URLs are routes of the page's configurations, or of the demo."""
    settings = [loads(CONFIG)]
    for block in read_blocks(page):
        if block.kind == "config":
            with naming(block):
                config = complete_config(block.text, block.attributes.get("at", ""))
                loaded, warnings = load_config(config, tmp_path, monkeypatch)
                wanted = block.attributes.get("warns")
                assert not warnings if wanted is None else any(wanted in each for each in warnings)
                settings.append(loaded)
    patterns = [when.pattern for each in settings for route in each.routes for when in route.when]
    for block in read_blocks(page):
        if block.kind in COMMAND_KINDS:
            with naming(block):
                commands = list(iter_commands(block.text))
                assert commands
                for words in commands:
                    check_command(
                        words,
                        tmp_path,
                        lambda path: any(each.match(path) is not None for each in patterns),
                    )


def contains(whole: Any, part: Any) -> bool:
    """Whether a part was cut from it: of mappings some members, of lists some items."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and contains(whole[name], each) for name, each in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(contains(item, each) for item in whole) for each in part)
    return bool(whole == part)


def test_examples_of_the_reference_are_cut_from_configurations_without_a_warning(
    tmp_path, monkeypatch
):
    wholes = [load_yaml(json.dumps(each)) for each in load_examples().values()]
    for whole in wholes:
        assert load_config(whole, tmp_path, monkeypatch)[1] == [], whole
    wholes += [complete_config(block.text) for block in read_blocks(GENERATED / "index.md")[:1]]
    shown = [block for block in BLOCKS if block.page.parent == GENERATED]
    for block in iter_kind("config", blocks=shown):
        is_own = block.page.name == "index.md"  # written by hand, with variables
        assert is_own or any(contains(whole, load_yaml(block.text)) for whole in wholes)


def test_commands_within_help_texts_exist(tmp_path: Path):
    for block in iter_kind("help"):
        for line in re.findall(r"(?:^|  )gateway (\S+(?: \S+)*)", block.text, re.M):
            for words in iter_commands(f"gateway {line}"):
                check_command(words, tmp_path, lambda path: True)


def test_commands_in_running_text_exist_with_their_options():
    """Their arguments may be left out, and some are placeholders in capitals."""
    options = {
        " ".join(words): {
            name for each in command.params for name in each.opts + each.secondary_opts
        }
        for words, command in iter_cli_commands()
    }
    for page in list_checked_pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for code in set(re.findall(r"`(gateway [a-z][^`\[]*)`", text)):
            if page.name != "cli.md":
                words = code.split()[1:]
                names = [f"gateway {' '.join(words[:count])}" for count in (2, 1)]
                found = [options[name] for name in names if name in options]
                assert found, f"{page}: {code}"
                given = set(re.findall(r"(?<=\s)--?[\w-]+", code)) - {"--help"}
                assert given <= found[0], f"{page}: {code}"


def test_json_and_files_of_other_programs_can_be_parsed():
    for block in iter_kind("json", "yaml", "toml", "ini"):
        match block.kind:
            case "json" if block.language == "json":
                json.loads(block.text)
            case "json":
                assert [json.loads(line) for line in block.text.splitlines() if line.strip()]
            case "yaml":
                list(YAML(typ="safe").load_all(block.text))
            case "toml":
                tomllib.loads(block.text)
            case "ini":
                parser = configparser.ConfigParser(strict=False, interpolation=None)
                parser.read_string(block.text)


def normalize(lines: Iterable[str]) -> str:
    return "\n".join(line.strip() for line in lines if line.strip())


def test_parts_of_files_are_what_the_files_say():
    for block in iter_kind("file"):
        path = ROOT / block.words[0]
        assert normalize(block.text.splitlines()) in normalize(path.read_text().splitlines())


def test_lines_of_the_log_begin_as_the_source_has_them():
    source = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # texts over several lines are one
    for block in iter_kind("log"):
        for line in block.text.splitlines():
            message = re.sub(r"^\d{4}-\S+ \S+ [A-Z]+ [\w.]+: ", "", line.strip())
            pattern = r"[\w-]+=|\d|https?:|['\"(:]|\.\.\."
            phrase = re.split(pattern, message, maxsplit=1)[0].strip()
            assert not phrase or phrase in source, line


def test_findings_have_states_and_subjects_that_there_are():
    subjects = tuple(f"front: {name}: " for name in CHECKS)
    for block in iter_kind("findings"):
        for line in block.text.splitlines():
            state, finding = line.split(maxsplit=1)
            assert state in list(FindingState), line
            assert finding.startswith(subjects), line


def test_captured_events_have_names_and_members_that_are_sent():
    for block in iter_kind("events"):
        for event in parse_stream(block.text.encode() + b"\n"):
            name = event.event_type
            if name not in ("message", "delete"):
                known = (CONTROL_EVENTS[name].schema or {}).get("properties", {})
                assert event.parse_json().keys() <= known.keys(), name


def test_captured_messages_have_types_that_there_are():
    for block in iter_kind("messages"):
        for direction, text in re.findall(r"^([<>]) (\{.*)$", block.text, re.M):
            (name,) = re.findall(r'^\{\s*"type":\s*"([\w-]+)"', text)
            known = MESSAGE_MODELS if direction == ">" else {*SERVER_MESSAGES, "error"}
            assert name in known, text
            if not re.search(r"\.\.\.\s*\}$", text):
                json.loads(text)


def test_python_can_be_parsed():
    for block in iter_kind("python"):
        ast.parse(block.text)


@pytest.mark.needs("docs")
def test_python_is_typed_as_the_package_says(tmp_path: Path):
    """One run of mypy for all blocks."""
    blocks = {f"block_{n}.py": b for n, b in enumerate(BLOCKS) if b.kind == "python"}
    assert blocks
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
    assert blocks
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


def parse_one(text: str) -> Block:
    (block,) = parse_blocks(DOCS / "page.md", text)
    return block


def test_a_comment_says_how_a_block_is_checked():
    text = '<!-- check: stream until="A 1" slow -->\n```sh title="a.sh"\ncurl\n```\n'
    block = parse_one(text)
    assert (block.kind, block.words, block.attributes) == ("stream", ["slow"], {"until": "A 1"})
    assert (block.language, block.title, block.text) == ("sh", "a.sh", "curl\n")
    assert parse_one("1. Do:\n\n    ```yaml\n    a:\n      b: 1\n    ```\n").text == "a:\n  b: 1\n"


@pytest.mark.parametrize(
    "command",
    [
        "gateway run --no-such-option",
        "gateway nothing",
        "make nothing",
        "pip install '.[nothing]'",
        "curl http://127.0.0.1:8080/nothing",
        "nothing",
        "echo '{\"a\": 1}' \\\n  | gateway prodoce orders > out.txt && ls  # why",
    ],
)
def test_wrong_commands_are_found(command: str, tmp_path: Path):
    with pytest.raises(AssertionError):
        for words in iter_commands(command):
            check_command(words, tmp_path, lambda path: False)
