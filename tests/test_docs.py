"""What the READMEs and the pages of docs/ say is so: commands, links, tables, captures, figures.

Code blocks of docs/ and of the README are checked by tests/docs.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
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
from gateway.core.channel import channel
from gateway.core.channel.ring_budget import RingBudget
from gateway.core.client.end_reason import UNSENT_END_REASONS, EndReason
from gateway.core.log.record import (
    Fault,
    Gap,
    GapReason,
    Ready,
    SnapshotEnd,
    StreamItem,
    TopicPartition,
)
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import parse_token
from gateway.errors import (
    FormatError,
    InvalidRecord,
    KeyReused,
    RecordRefused,
    RecordTooLarge,
    RegistryUnavailable,
    RequestError,
)
from gateway.hub.fanout import broadcaster as pump
from gateway.hub.fanout import hub
from gateway.hub.reads import page as pages
from gateway.hub.wires.control_events import CONTROL_EVENTS, describe_entry
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.http import problems
from gateway.web.http.edge import USER_TIMEOUT_S
from gateway.web.http.transport import GatewayProtocol
from gateway.web.routing import query, routes
from gateway.web.streams import ndjson
from gateway.web.websocket import producer as produces
from gateway.web.websocket import session
from gateway.web.workers.supervisor import Supervisor
from gateway.wire import gzip

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


def options_of(*command: str) -> str:
    answer = CliRunner().invoke(app, [*command, "--help"], prog_name="gateway")
    assert answer.exit_code == 0, f"there is no gateway {' '.join(command)}"
    return answer.output


@pytest.mark.parametrize(
    ("page", "words"),
    list(gateway_lines()),
    ids=lambda x: " ".join(x) if isinstance(x, list) else x,
)
def test_every_gateway_command_exists_with_its_options(page: str, words: list[str]):
    names = [word for word in words if not word.startswith("-")]
    help = options_of(*names[:1]) + options_of()
    if names[:1] and names[0] in ("dlq", "replay", "pipeline", "token"):  # groups of commands
        help += options_of(*names[:2])
    for word in words:
        if word.startswith("-"):
            assert re.search(rf"(^|[\s,]){re.escape(word.split('=')[0])}\b", help, re.M), word


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


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_and_paths_exist(page: Path):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    paths = re.findall(r"\b((?:tests|deploy|examples|bench)/[\w/.-]+\w)", text)
    named_here = re.findall(r"(?<!tests/)\b((?:kafka|core|hub|web|wire|config)/[\w/]+\.py)", text)
    for link in links:
        assert (page.parent / link).exists(), link
    for path in set(paths) - {"bench/results"}:  # made by `make figures`
        assert (ROOT / path).exists(), path
    for path in named_here:
        assert (ROOT / "gateway" / path).exists(), path
    assert links or page.name == "CHANGELOG.md" or page.parent.name == "bench"


def names_beside_links(page: Path) -> Iterator[tuple[str, Path]]:
    """Every name in backticks that is beside a link to a module, or its text, and that module."""
    link, name = r"\[[^\]]*\]\(([\w/.-]+\.py)\)", r"`([A-Za-z_][\w.]*)(?:\(\))?`"
    patterns = (
        rf"{name}\s+(?:in\s+)?\(?{link}",
        rf"\[{name}\]\(([\w/.-]+\.py)\)",
        rf"(?P<module>{link})[,:]?\s+{name}",
    )
    for pattern in patterns:
        for found in re.finditer(pattern, page.read_text()):
            first, second = found.groups()[-2:]
            named, module = (second, first) if "module" in found.groupdict() else (first, second)
            yield named, page.parent / module


NAMES_BESIDE_LINKS = sorted({found for page in PAGES for found in names_beside_links(page)})


@pytest.mark.parametrize(("name", "module"), NAMES_BESIDE_LINKS)
def test_a_name_beside_a_link_to_a_module_occurs_in_it(name: str, module: Path):
    """`USER_TIMEOUT_S` was said to be in the module of the transport, which it had left."""
    words = set(re.findall(r"\w+", module.read_text()))
    assert set(name.split(".")) <= words, f"{named(module)} has no {name}"


# Configurations


@pytest.mark.parametrize("block", [b for page in PAGES for b in fenced(page.read_text(), "yaml")])
def test_every_yaml_block_is_a_configuration_without_a_warning(block: str):
    settings = loads(whole(block))
    assert list(iter_warnings(settings)) == []
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


OPTIONS = list(iter_options())


@pytest.mark.parametrize(("page", "path", "default"), OPTIONS)
def test_the_tables_of_options_have_their_real_names_and_defaults(
    page: str, path: str, default: str
):
    real = option(path).get("default")
    said: Any = {"none": None, "[]": [], "false": False, "1": 1}.get(default, default)
    assert said == real and type(said) is type(real)


def test_the_tables_of_options_speak_of_all_that_operators_tune():
    wanted = [f"kafka.topics[].{name}" for name in (
        "defaultOffset", "partitionReadyTimeout", "offsetOutOfRange", "reconnect.initial",
        "reconnect.max", "cache.bytes", "cache.age", "isolation", "clockSkew",
    )]  # fmt: skip
    wanted += ["kafka.bootstrap", "routes[].with.history", "memory", "tokens.resume"]
    wanted += ["listen.limits.connections", "listen.limits.perAddress"]
    assert set(wanted) <= {path for _, path, _ in OPTIONS}


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
        "begin": {"topics": [], "partitions": {}, "pending": [], "resume": "exact"},
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


def test_every_event_is_in_the_table():
    rows = table("Events", text=read_page("sse"))
    told = {name for row in rows for name in re.findall(r"`([\w-]+)`", row[0])}
    assert told >= {*CONTROL_EVENTS, "message"} - {"partitions-ready", "partitions-error"}
    assert "`partitions-ready`" in read_page("sse") and "`partitions-error`" in read_page("sse")


def test_every_reason_of_a_gap_is_in_the_table():
    told = {row[0].strip("`") for row in table("Gaps", text=read_page("resume-and-gaps"))}
    assert {reason.value for reason in GapReason} == told


def test_the_end_of_a_snapshot_is_told_with_the_fields_that_the_table_names():
    (end,) = [row for row in table("Events", text=read_page("sse")) if row[0] == "`snapshot-end`"]
    told = describe(SnapshotEnd(("orders",), 1, (TP,)))
    assert told.keys() <= set(re.findall(r"`(\w+)`", end[2]))


def test_every_reason_of_an_end_is_in_the_table():
    """Those that clients are told: not how sockets end streams of which nobody is to hear."""
    rows = table("Events", 1, text=read_page("sse"))
    said = {reason for row in rows for reason in re.findall(r"`([\w-]+)`", row[0])}
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


def titles() -> Iterator[str]:
    """Of all errors that a message over WebSocket may be answered with."""
    makes = ("RequestError", "BadMessageError")
    beside = ("http/transport", "http/head", "http/hosts", "discovery/__init__")  # of HTTP alone
    beside += tuple(f"exchange/{name}" for name in ("dispatch", "fetch", "produce", "reply"))
    beside += ("streams/renewal", "streams/dictionary")
    apart = {ROOT / "gateway" / "web" / f"{name}.py" for name in beside}
    assert all(path.is_file() for path in apart)
    apart |= {*ROOT.glob("gateway/web/admin/*.py"), *ROOT.glob("gateway/web/console/*.py")}
    for path in {*ROOT.glob("gateway/**/*.py")} - apart:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in makes:
                texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
                yield from [text for text in texts if isinstance(text, str)][:1]
    yield from ("Busy", "Guard unavailable", "Paused", "Rate limited")


def test_every_code_of_an_error_over_websocket_is_in_its_table():
    rows = table("Errors", text=read_page("websocket"))
    said = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row[0])} - {"code", "error"}
    real = {problems.get_code(RequestError(400, title, "")) for title in titles()}
    writes = (
        KeyReused(""), RecordTooLarge(""), InvalidRecord(""), RecordRefused(""), FormatError(""),
        RegistryUnavailable("", retry_after=1.0),
    )  # fmt: skip
    real |= {problems.get_code(error) for error in writes}
    others = {"access-denied", "kafka-unavailable", "position-refused", "unauthorized"}
    assert said == real | others | {"internal-error"}
    assert {"busy", "draining"} <= real


def test_the_phrases_to_grep_for_are_those_of_the_log():
    source = "".join(path.read_text() for path in (ROOT / "gateway" / "kafka").rglob("*.py"))
    rows = table("A partition is late", text=read_page("troubleshooting"))
    phrases = [row[0].strip("`") for row in rows if " " in row[0]]
    assert len(phrases) > 6
    for phrase in phrases:
        begins = re.split(r" cause=|=|\d", phrase)[0].strip()  # the rest is filled in
        assert f'"{begins}' in source, phrase


def test_the_lines_about_clients_are_those_of_the_log():
    hub_folder = SOURCE / "hub"
    words = (SOURCE / "telemetry" / "traffic.py").read_text()
    source = words + "".join(path.read_text() for path in hub_folder.rglob("*.py"))
    rows = table("A client does not get its records", text=read_page("troubleshooting"))
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


def iter_paragraphs(text: str) -> Iterator[str]:
    """The paragraphs and the rows of tables, each on one line."""
    for part in re.split(r"\n\s*\n|\n(?=\|)", text):
        yield " ".join(part.split())


@pytest.mark.parametrize(
    ("subject", "figure", "is_so"),
    [
        ("until a minute after", "a minute", hub.LINGER_S == 60),
        ("`resume: batch`", "512", Tail.MAX_EXACT_TOKEN_CHARS == 512),
        ("`resume: batch`", "64 KB", channel.Channel.MAX_BYTES_WITHOUT_ID == 1 << 16),
        ("`resume: batch`", "quarter of a second", hub.SWEEP_INTERVAL_S == 0.25),
        ("2,000 partitions", "6 KB", hub.LONG_ID_CHARS == 6 << 10),
        ("2,000 partitions", "64 KB", GatewayProtocol.MAX_HEAD_BYTES == 1 << 16),
        ("acknowledges nothing", "60 seconds", USER_TIMEOUT_S == 60),
        ("ring of encoded chunks", "1 MiB", ring() == 1 << 20),
        ("Each chunk of records is compressed", "256 bytes", gzip.MIN_COMPRESS_BYTES == 256),
        ("`routes[].with.maxLifetime`", "10 %", routes.LIFETIME_JITTER == 0.1),
        ("`drainTimeout`", "10 s", Supervisor.KILL_GRACE_S == 10),
        ("`too-many-subscriptions`", "100", session.MAX_STREAMS == 100),
        ("`too-many-produces`", "100", produces.MAX_IN_FLIGHT == 100),
        ("`wait`", "1,000 records", pages.MAX_PAGE_RECORDS == 1000),
        ("`wait`", "1 MiB", pages.MAX_PAGE_BYTES == 1 << 20),
        ("`wait`", "`5m`", query.MAX_WAIT_S == 300),
        ("`@end`", "4 KB", ndjson.MAX_LINK_TOKEN_CHARS == 4096),
    ],
)
def test_figures_beside_what_they_are_of_are_those_of_the_code(
    subject: str, figure: str, is_so: bool
):
    """Whatever the sentence is: one paragraph names the subject and the figure."""
    texts = [path.read_text() for path in DOCS.glob("*.md")]
    parts = [part for text in texts for part in iter_paragraphs(text)]
    assert any(subject in part and figure in part for part in parts)
    assert is_so


def test_a_fault_is_told_with_the_fields_that_the_table_names():
    (error,) = [row for row in table("Events", text=read_page("sse")) if row[0] == "`error`"]
    for field in re.findall(r"`(\w+)`", error[2]):
        assert field in describe(Fault(TP, 0, 0, 0, "access-denied"))


def test_the_table_of_packages_names_each_of_them_once():
    text = PAGES[1].read_text()
    rows = re.findall(r"^\| \d \| (.*?) \| (.*) \| .*\|$", text, re.M)
    named = [link for row in rows for link in re.findall(r"\]\(([\w/]+)/\)", " ".join(row))]
    assert sorted(named) == sorted(set(named))
    tops = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    split = ("cli", "config", "core", "hub", "kafka", "web")
    folders = [path.parent for top in split for path in SOURCE.glob(f"{top}/*/__init__.py")]
    below = {str(path.relative_to(SOURCE)) for path in folders}
    assert tops | below - {"cli/dlq", "cli/pipeline"} == set(named) - {"web/js"}


def test_a_round_goes_in_the_slices_that_are_said():
    assert pump.SLICE_S == 0.004
    parts = iter_paragraphs(PAGES[1].read_text())
    assert any("broadcaster" in part and "4 ms" in part for part in parts)


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


@pytest.mark.parametrize("code", [0, 1, 2, 78, 130])
def test_every_exit_code_is_explained(code: int):
    rows = table("The gateway does not start", text=read_page("troubleshooting"))
    assert str(code) in [row[0] for row in rows]
    assert str(code) in options_of()


def test_every_line_of_the_threat_model_names_tests_that_exist():
    shown = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/threat-model.md").read_text())
    assert len(shown) > 40
    for path, name in shown:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
