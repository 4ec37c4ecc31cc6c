"""Define options that several commands share, and complete names of the configuration in a shell.

A shell runs the completion at each press of the Tab key, so that only parses the file as YAML,
without the checks of a configuration: it is quick, and works if the configuration is wrong
elsewhere. A file that is not YAML completes nothing. No broker is asked.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.telemetry.logs import COMPONENTS

CONFIG_HELP = "The configuration, in YAML."
CONFIG_VARIABLE = "GATEWAY_CONFIG"
DEFAULT_CONFIG_FILE = Path("gateway.yaml")
DEFAULT_CONFIG_NAME = f"${CONFIG_VARIABLE} or {DEFAULT_CONFIG_FILE}"
MISSING_CONFIG_MESSAGE = (
    f"there is no configuration: give -c FILE, set {CONFIG_VARIABLE}, or put {DEFAULT_CONFIG_FILE} "
    "into this folder; `gateway init` writes one"
)
DEFAULT_SERVERS = "localhost:9092"
SERVERS_VARIABLES = ["GATEWAY_KAFKA__SERVERS", "GATEWAY_KAFKA_SERVERS"]
"""The variable of `kafka.servers`, and its old name, as `config.sections.variables` has them."""


def find_config_file(file: Path | None = None) -> Path | None:
    """Return the configuration to use: the given or the default one; None if there is none."""
    if file is not None:
        return file
    named = os.environ.get(CONFIG_VARIABLE)
    if not named:
        return DEFAULT_CONFIG_FILE if DEFAULT_CONFIG_FILE.is_file() else None
    if not Path(named).is_file():
        problem = "is a folder" if Path(named).is_dir() else "does not exist"
        raise typer.BadParameter(
            f"the file '{named}' of {CONFIG_VARIABLE} {problem}; correct it, or give -c FILE"
        )
    return Path(named)


def require_config_file(file: Path | None = None) -> Path:
    found = find_config_file(file)
    if found is None:
        raise typer.BadParameter(MISSING_CONFIG_MESSAGE)
    return found


def is_given(ctx: typer.Context, name: str, *, in_environment: bool = False) -> bool:
    source = ctx.get_parameter_source(name)
    names = ("COMMANDLINE", "ENVIRONMENT") if in_environment else ("COMMANDLINE",)
    return source is not None and source.name in names


def _validate_config_file(ctx: typer.Context, file: Path) -> Path:
    if ctx.resilient_parsing:  # a shell completes the line
        return file
    if not is_given(ctx, "config"):
        return require_config_file()
    if not file.is_file():
        raise typer.BadParameter(f"File '{file}' does not exist.")
    return file


def build_file_option(*names: str, help: str) -> Any:
    return typer.Option(*names, metavar="FILE", exists=True, dir_okay=False, help=help)


def build_config_option(help: str) -> Any:
    return build_file_option("--config", "-c", help=help)


def _parse_duration(text: str) -> float:
    from gateway.config.types.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None


def build_time_option(help: str) -> Any:
    """Return an option of seconds, which is written such as 5s. Its default is written so, too."""
    return typer.Option(parser=_parse_duration, metavar="TIME", help=help)


OptionalConfigOption = Annotated[
    Path | None, build_config_option(f"{CONFIG_HELP}  [default: {DEFAULT_CONFIG_NAME}]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


ConfigFileOption = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        dir_okay=False,
        default_factory=lambda: DEFAULT_CONFIG_FILE,
        callback=_validate_config_file,
        show_default=DEFAULT_CONFIG_NAME,
        help=CONFIG_HELP,
    ),
]
ConfigFileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        show_default=DEFAULT_CONFIG_NAME,
        help=CONFIG_HELP,
    ),
]
HostOption = Annotated[
    str | None, typer.Option(metavar="HOST", help="Address to listen on; overrides listen.host.")
]
PortOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, metavar="N", help="Port, 0 for any free one; overrides listen.port."
    ),
]
OriginsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--origin",
        metavar="URL",
        help="Let pages of this origin connect, such as http://localhost:5173; repeatable.",
    ),
]
ServersOption = Annotated[
    str,
    typer.Option(
        "--servers",
        "-s",
        envvar=SERVERS_VARIABLES,
        help="Kafka brokers: HOST:PORT, separated by commas.",
    ),
]
KafkaConfigOption = Annotated[
    Path | None,
    build_config_option(
        "Take servers, TLS and SASL from a gateway's configuration.  "
        f"[default without --servers: {DEFAULT_CONFIG_NAME}]"
    ),
]


def split_list(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        envvar="GATEWAY_LOG_FORMAT",
        metavar="FORMAT",
        help="console or json, from the first line on; overrides telemetry.logs.format.",
    ),
]


def begin_log(log_format: LogFormat | None, file: Path | None) -> None:
    """Write JSON lines from now on if that is asked for, also by a file that is wrong elsewhere.

    The commands that serve call this before anything else.
    """
    from gateway.config.source.yaml_document import find_log_format
    from gateway.telemetry import logs

    found = str(log_format or "")
    if not found:
        try:
            text = "" if file is None else file.read_bytes().decode(errors="replace")
        except OSError:  # which loading it reports
            text = ""
        found = find_log_format(text, str(file), os.environ)
    if found == LogFormat.JSON:
        logs.configure("json")
        logs.capture_stray_lines()


def _validate_components(names: Sequence[str] | None) -> Sequence[str] | None:
    for name in names or ():
        if name not in COMPONENTS:
            from gateway.config.types.substitution import find_closest

            closest = find_closest(name.removeprefix("gateway."), COMPONENTS)
            hint = f"did you mean '{closest}'?" if closest else f"use {', '.join(COMPONENTS)}"
            raise typer.BadParameter(f"unknown component '{name}'; {hint}")
    return names


DebugOption = Annotated[
    list[str] | None,
    typer.Option(
        "--debug",
        metavar="COMPONENT",
        callback=_validate_components,
        autocompletion=lambda incomplete: _select_names(COMPONENTS, incomplete),
        help=f"Log in detail what a component does; repeatable. One of {', '.join(COMPONENTS)}.",
    ),
]


def read_configuration(ctx: typer.Context) -> dict[str, Any]:
    """Return the configuration of a command line as plain values; an empty one if there is none.

    The file is that of `-c`, before or behind the cursor; without it, the default one.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    parsed = ctx.params["config"] if is_given(ctx, "config") else None
    file = _find_config_option(_read_command_line()) or parsed or os.environ.get(CONFIG_VARIABLE)
    try:
        document: Any = YAML(typ="safe").load(Path(file or DEFAULT_CONFIG_FILE).read_text())
    except (OSError, ValueError, YAMLError):
        return {}
    return document if isinstance(document, dict) else {}


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    kafka = _get_section(read_configuration(ctx), "kafka")
    lists = [_get_items(cluster, "topics") for cluster in (kafka, *kafka.values())]
    topics = [each for topics in lists for each in topics]
    names = [each.get("name") if isinstance(each, dict) else each for each in topics]
    return sorted(set(_select_names(names, incomplete)))


def complete_guard(ctx: typer.Context, incomplete: str) -> list[str]:
    return _select_names(_get_section(read_configuration(ctx), "guards"), incomplete)


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    jobs = _get_items(_get_section(read_configuration(ctx), "pipelines"), "jobs")
    return _select_names([each.get("name") for each in jobs if isinstance(each, dict)], incomplete)


def complete_job_or_all(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*complete_job(ctx, incomplete), *_select_names(["all"], incomplete)]


def _get_section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _get_items(values: Any, name: str) -> list[Any]:
    items = values.get(name) if isinstance(values, dict) else None
    return items if isinstance(items, list) else []


def _select_names(names: Iterable[Any], incomplete: str) -> list[str]:
    return [name for name in names if isinstance(name, str) and name.startswith(incomplete)]


def _read_command_line() -> list[str]:
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        return shlex.split(line)
    except ValueError:  # a quote is not closed yet
        return line.split()


def _find_config_option(words: Sequence[str]) -> str | None:
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word in ("-c", "--config"):
            return following
        if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None
