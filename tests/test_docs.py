"""What the READMEs and the pages of docs/ say is so: commands, configurations, tables, captures.

Code blocks of docs/ and of the README are checked by tests/docs, links by tests/lint.py.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.browser import running_browser
from support.gateways import running_gateway_process
from support.records import RecordToSend, produce_records
from support.sse import SseEvent, parse_stream
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config import build_json_schema, dumps, iter_warnings, loads
from gateway.core.channel.chunk_ring import RingBudget
from gateway.core.client.terms import UNSENT_END_REASONS, EndReason
from gateway.core.log.record import (
    Gap,
    GapReason,
    Ready,
    StreamItem,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token
from gateway.hub.wires.control_events import describe_entry
from gateway.kafka.embedded import EmbeddedKafka

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "gateway"
PAGES = [
    ROOT / name
    for name in (
        "README.md", "gateway/README.md", "gateway/sidecar/README.md", "gateway/pipeline/README.md",
        "examples/README.md", "examples/pipeline/README.md", "deploy/README.md",
        "bench/README.md", "CHANGELOG.md", "SECURITY.md",
    )
]  # fmt: skip
README = PAGES[0].read_text()
DOCS = ROOT / "docs"
TP = TopicPartition("orders", 0)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def ring() -> object:
    return RingBudget().max_ring_bytes


def read_page(name: str) -> str:
    """The text of a page of docs/."""
    return (DOCS / f"{name}.md").read_text()


def fenced(text: str, language: str = "") -> list[str]:
    """The blocks between fences that name this language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for kind, block in blocks if kind == language]


def commands() -> Iterator[tuple[str, str]]:
    """Every command line: indented by four, in the code columns of tables, and in examples."""
    for path in PAGES:
        whole = path.read_text()
        for block in fenced(whole):
            for line in re.findall(r"^((?:make|gateway|curl) .*)", block, re.M):
                yield named(path), line
        text = re.sub(r"^```.*?^```$", "", whole, flags=re.M | re.S)
        for line in re.findall(r"^    (\S.*)", text, re.M) if path != PAGES[0] else ():
            yield named(path), line
        for code in re.findall(r"`((?:make|gateway|curl|\.venv/\S+) [^`]*)`", text):
            yield named(path), code.replace("\n", " ")
    deployed = (path for path in ROOT.glob("deploy/**/*") if path.is_file())
    for path in [*ROOT.glob("examples/*.yaml"), *deployed]:
        for line in re.findall(
            r"^(?:#|ExecStart(?:Pre)?=\S*?/bin/)? *(gateway .*)", path.read_text(), re.M
        ):
            yield named(path), line


COMMANDS = sorted(set(commands()))


def gateway_lines() -> Iterator[tuple[str, list[str]]]:
    for page, line in COMMANDS:
        for part in line.split("|"):
            words = shlex.split(part, comments=True)
            if words[:1] == ["gateway"]:
                yield page, words[1:]


@cache
def options_of(*command: str) -> str:
    answer = CliRunner().invoke(app, [*command, "--help"], prog_name="gateway")
    assert answer.exit_code == 0, f"there is no gateway {' '.join(command)}"
    return answer.output


def test_every_gateway_command_exists_with_its_options():
    for page, words in gateway_lines():
        names = [word for word in words if not word.startswith("-")]
        help = options_of(*names[:1]) + options_of()
        if names[:1] and names[0] in ("dlq", "replay", "pipeline", "token"):  # groups of commands
            help += options_of(*names[:2])
        for word in words:
            if word.startswith("-"):
                option = re.escape(word.split("=")[0])
                assert re.search(rf"(^|[\s,]){option}\b", help, re.M), f"{page}: {words}"


def test_every_make_target_exists_with_its_variables():
    makefile = (ROOT / "Makefile").read_text()
    seen = 0
    for page, line in COMMANDS:
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            seen += 1
            for word in words[1:]:
                name, assigns, _ = word.partition("=")
                wanted = rf"\$\(.*\b{name}\b.*\)" if assigns else rf"^{name}:"
                assert re.search(wanted, makefile, re.M), f"{page}: {line}"
    assert seen > 5


def test_every_command_is_of_a_known_kind():
    """So that none escapes the tests around this one."""
    for page, line in COMMANDS:
        first = re.split(r"[ |]", line)[0]
        known = ("make", "gateway", "curl", "echo", "pip", ".", ".venv/bin/python")
        assert first in known, f"{page}: {line}"


def test_every_pip_line_asks_for_extras_that_the_package_has():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for line in [line for _, line in COMMANDS if line.startswith("pip ")]:
        for word in shlex.split(line, comments=True)[2:]:
            name, _, names = word.partition("[")
            assert name in ("kafka-gateway", ".") or name.endswith(".whl"), line
            assert set(names.rstrip("]").split(",")) <= {"", *extras}, line


# Configurations


def test_every_yaml_block_is_a_configuration_without_a_warning():
    for page in PAGES:
        for block in fenced(page.read_text(), "yaml"):
            settings = loads(whole(block))
            assert list(iter_warnings(settings)) == [], block
            assert loads(dumps(settings)) == settings


def whole(block: str) -> str:
    """A block may be jobs alone, or lack the cluster, which is the page's first."""
    if block.startswith("- "):
        block = f"pipelines:\n  jobs:\n{indent(block, '    ')}"
    return block if "kafka:" in block else f"kafka: {{servers: [localhost:9092]}}\n{block}"


def test_the_first_configuration_is_the_example():
    first, *_ = fenced(README, "yaml")
    assert loads(first, environ={}) == loads(
        fenced(read_page("topics-and-routes"), "yaml")[0], environ={}
    )
    example = (ROOT / "examples" / "first.yaml").read_text()
    assert loads(first, environ={}) == loads(example, environ={})


def option(path: str) -> dict[str, Any]:
    """The schema of an option, by a path as the tables have it. KeyError if there is none."""
    made = build_json_schema()
    found: Any = made
    path = re.sub(r"^routes\[\]\.(?!with\b)", "routes[].with.", path)  # pages have the short form
    for name in path.split("."):
        found = found["properties"][name.removesuffix("[]")]
        found = found["items"] if name.endswith("[]") else found
        found = found.get("else", found)  # `kafka` of one cluster
        found = found["allOf"][0]["then"] if "allOf" in found else found  # `with` of a stream
        if "$ref" in found:
            below = made["$defs"][found["$ref"].rpartition("/")[2]]
            found = {**below, **{key: found[key] for key in ("default",) if key in found}}
    return found


def table(heading: str, number: int = 0, *, text: str) -> list[list[str]]:
    """The rows of a table below a heading of a text, the first one if no other is named."""
    _, _, below = text.partition(f"# {heading}\n")
    found = re.findall(r"(?:^\|.*\|\n)+", below.partition("\n## ")[0], re.M)
    rows = [line[1:-1] for line in found[number].splitlines()]
    return [[cell.strip() for cell in row.split(" | ")] for row in rows[2:]]


def iter_options() -> Iterator[tuple[str, str, str]]:
    """Each option in a table of docs/ with its default: page, path from the root, default."""
    roots = build_json_schema()["properties"]
    for path in sorted(DOCS.glob("*.md")):
        for found in re.findall(r"(?:^\|.*\|\n)+", path.read_text(), re.M):
            head, _, *rows = [
                [cell.strip() for cell in line[1:-1].split(" | ")] for line in found.splitlines()
            ]
            if head[0] != "Option" or "Default" not in head:
                continue
            for row in rows:
                names = re.findall(r"`([^`]+)`", row[0])
                defaults = [d.strip("` ") for d in row[head.index("Default")].split(",")]
                if len(defaults) == 1:
                    defaults *= len(names)
                for name, default in zip(names, defaults, strict=True):
                    above = names[0].rpartition(".")[0]  # `a.b`, `c`: the second is a.c
                    full = name if "." in name or not above else f"{above}.{name}"
                    if re.split(r"\W", full)[0] in roots:
                        yield path.stem, full, default


def test_the_tables_of_options_have_their_real_names_and_defaults():
    options = list(iter_options())
    assert len(options) > 5
    for page, path, default in options:
        real = option(path).get("default")
        said: Any = {"none": None, "[]": [], "false": False, "1": 1}.get(default, default)
        assert said == real and type(said) is type(real), f"{page}: {path}"


def test_options_named_in_running_text_exist():
    schema = build_json_schema()
    parts = (schema, *schema["$defs"].values())
    known = {name for part in parts for name in part.get("properties", {})}
    others = {"event", "prefer", "processed", "recovered", "worker"}  # of other programs
    for path in DOCS.glob("*.md"):
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
        for name in re.findall(r"`([a-z]\w*): [^`]*`", text):
            assert name in known | others, f"{named(path)}: {name}"


# The capture


def describe(entry: StreamItem) -> dict[str, Any]:
    """The data of its event."""
    described = describe_entry(entry)
    assert described is not None
    return described[1]


def captured() -> list[SseEvent]:
    blocks = [block for block in fenced(read_page("sse"), "text") if "event: " in block]
    assert len(blocks) == 2
    return [event for block in blocks for event in parse_stream(block.encode() + b"\n")]


def test_the_captured_events_have_the_fields_that_are_sent():
    made: dict[str, Any] = {
        "gap": describe(Gap(TP, 1, 2, 0, GapReason.RETENTION)),
        "ready": describe(Ready(TP, 1, 1, 0)),
        "position": {},
        "delete": {"key": "ada"},
        "end": {"reason": "drain"},
        "begin": {
            "topics": [],
            "partitions": {},
            "pending": [],
            "resume": "exact",
            "heartbeat": 15.0,
        },
    }
    seen = {event.event_type for event in captured()}
    assert seen == {*made, "message"}
    for event in captured():
        if event.event_type != "message":
            assert event.parse_json().keys() == made[event.event_type].keys()


def test_the_captured_ids_can_be_read_and_never_go_back():
    before: dict[int, list[int | None]] = {}
    ids = [event.last_event_id for event in captured() if event.last_event_id]
    assert len(set(ids)) > 4
    for id in ids:
        (topic,) = parse_token(id).topics
        stood = before.setdefault(len(topic.offsets), topic.offsets)
        pairs = zip(stood, topic.offsets, strict=True)
        assert all(old is None or (new is not None and new >= old) for old, new in pairs)
        before[len(topic.offsets)] = topic.offsets


def test_the_tables_have_every_reason_of_gaps_and_ends():
    """Of ends those that clients are told, not how sockets end streams nobody is to hear of."""
    gaps = {row[0].strip("`") for row in table("Gaps", text=read_page("resume-and-gaps"))}
    assert {reason.value for reason in GapReason} == gaps
    ends = table("Events", text=read_page("sse"))
    said = {reason for row in ends for reason in re.findall(r"`([\w-]+)`", row[0])}
    assert said == set(EndReason) - UNSENT_END_REASONS


def test_every_reason_of_an_end_is_listed_with_the_modules_that_give_it():
    """The reasons were literals in twelve modules, and the list of who gives them lacked half."""
    listed: set[tuple[EndReason, str]] = set()
    for reasons, modules in table("Who ends a stream", text=(SOURCE / "README.md").read_text()):
        links = re.findall(r"\]\(([\w/]+\.py)\)", modules)
        listed |= {
            (EndReason(r), link) for r in re.findall(r"`([\w-]+)`", reasons) for link in links
        }
    source = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    given = {
        (EndReason[name], path)
        for path, text in source.items()
        for name in re.findall(r"\.end\(EndReason\.(\w+)\)(?!`)", text)
    }
    assert {reason for reason, _ in listed} == set(EndReason) and given <= listed
    for reason, path in listed:
        assert f"EndReason.{reason.name}" in source[path], (reason, path)


def test_the_phrases_to_grep_for_are_those_of_the_log():
    source = "".join(path.read_text() for path in (ROOT / "gateway" / "kafka").rglob("*.py"))
    rows = table("A partition is late", text=read_page("stream-log"))
    phrases = [row[0].strip("`") for row in rows if " " in row[0]]
    assert len(phrases) > 6
    for phrase in phrases:
        begins = re.split(r" cause=|=|\d", phrase)[0].strip()  # the rest is filled in
        assert f'"{begins}' in source, phrase


def test_the_lines_about_clients_are_those_of_the_log():
    hub_folder = SOURCE / "hub"
    words = (SOURCE / "telemetry" / "traffic.py").read_text()
    source = words + "".join(path.read_text() for path in hub_folder.rglob("*.py"))
    rows = table("A client does not get its records", text=read_page("stream-log"))
    phrases = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row[0])]
    assert len(phrases) > 10
    for phrase in phrases:
        begins = re.sub(r"^(stream |partition )?(state=)?", "", phrase)  # the rest is filled in
        assert re.search(rf'"{begins}\b', source), phrase


def test_the_sizes_of_ids_are_what_is_said():
    from gateway.core.token.resume_token import TokenWriter, TopicPositions, seal_token

    def length(partitions: int, offset: int) -> int:
        places = TopicPositions("orders", "id", [offset] * partitions, [3] * partitions)
        return len(seal_token(TokenWriter("c", [places], 1).to_text(), b"view-"))

    assert length(500, 10**6) >= 2000 and length(500, 10**10) <= 3100
    assert length(2000, 10**6) >= 8000 and length(2000, 10**10) <= 12_100
    assert length(12, 10**6) >= 80 and length(12, 10**10) <= 120


@pytest.mark.needs("chromium")
async def test_the_page_that_keeps_a_table_does_so_over_a_restart(embedded: EmbeddedKafka):
    """The script and the configuration of the page about snapshots, as they stand there."""
    (script,) = [block for block in fenced(read_page("snapshots"), "js") if "snapshot-end" in block]
    (text,) = [
        block for block in fenced(read_page("snapshots"), "yaml") if "mode: snapshot" in block
    ]
    servers = ",".join(embedded.bootstrap)
    raw = YAML(typ="safe").load(text.replace("localhost:9092", servers))
    embedded.create_topic("prices", 2)

    def price(symbol: str, price: int) -> RecordToSend:
        value = json.dumps({"symbol": symbol, "price": price})
        return RecordToSend(value.encode(), symbol.encode())

    def holds(**prices: int) -> str:
        return f"return table() === {json.dumps(json.dumps(sorted(prices.items())))}"

    await produce_records(
        embedded.bootstrap, "prices", [price("a", 1), price("b", 1), price("a", 2)]
    )
    hands = """
        const sorted = () => [...table].map(([key, { price }]) => [key, price]).sort();
        const python = (rows) => JSON.stringify(rows).replaceAll(",", ", ");
        window.table = () => python(sorted());
    """
    show = "const show = (table) => { window.shown = table.size; };"
    async with (
        running_gateway_process({**raw, "listen": {"port": 0}}) as gateway,
        running_browser() as tab,
    ):
        await tab.open_url(f"{gateway.base_url}/health/live")
        await tab.run_script(show + script + hands)
        await tab.wait_for_script("return window.shown === 2")
        await tab.wait_for_script(holds(a=2, b=1))
        await produce_records(embedded.bootstrap, "prices", [price("c", 1)])
        await tab.wait_for_script(holds(a=2, b=1, c=1))
        await gateway.stop()
        await produce_records(
            embedded.bootstrap, "prices", [price("a", 3), RecordToSend(None, b"b")]
        )
        await gateway.start()
        await tab.wait_for_script(
            holds(a=3, c=1), timeout_s=60
        )  # `end` sends it away for up to 15 s
