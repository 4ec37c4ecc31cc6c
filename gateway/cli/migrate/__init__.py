"""`gateway migrate`: turn a zilla.yaml into a configuration of the gateway.

Zilla has a chain of bindings from a port to Kafka. `bindings` finds the chains; `routes` converts
the bindings in them that map paths to topics, `listen` those before and `kafka` those behind. They
fill a `draft`, and give each value of the file an outcome in the `report`. `validation` removes
what `gateway check` would refuse, and writes the rest with comments. The names are those of Zilla's
JSON schemas (2.4). This module has the command; start reading at `migrate_source`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.init import print_next_commands
from gateway.cli.options import DEFAULT_CONFIG_FILE
from gateway.cli.output import escape_controls, replace_file, require_writable
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from .draft import Draft
    from .report import Source
    from .validation import WrittenConfig

STANDARD_OUTPUT = Path("-")
_EXPRESSION = re.compile(r"\$\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def migrate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A zilla.yaml.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write; - for standard output."
        ),
    ] = DEFAULT_CONFIG_FILE,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list what was carried, and where it is now.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Migrate a configuration from Zilla.

    The file that is written has comments and passes `gateway check`. What could not be carried over
    is listed on standard error, one line for each, FILE:LINE: what: why, and what to do instead;
    and again as comments in the file. No value of FILE is left out without a line.

    A secret is never written: the file refers to environment variables, which are listed.

    \b
    gateway migrate zilla.yaml
    gateway migrate zilla.yaml -o - --all
    """
    is_file = output != STANDARD_OUTPUT
    if is_file:
        require_writable(output, is_new=not force)
        if output.exists() and output.samefile(file):
            raise GatewayError(f"{output} is what is migrated; write another file by -o")
    from .report import read_source

    draft, written = migrate_source(read_source(file), file, output)
    _print_report(draft, show_all=show_all)
    if written is None:
        raise GatewayError(
            f"nothing of {file} reads or writes a topic for clients; there is nothing to write"
        )
    if is_file:
        replace_file(output, written.text)
    else:
        typer.echo(written.text, nl=False)
    _print_next_steps(draft, output)


def migrate_source(source: Source, file: Path, output: Path) -> tuple[Draft, WrittenConfig | None]:
    """Return the draft of a source with its report, and the text; None if no route is left."""
    from .bindings import BindingGraph
    from .draft import Draft
    from .kafka import ClusterConverter, convert_catalogs
    from .listen import convert_listen, convert_telemetry
    from .report import MigrationReport, SourceValue
    from .routes import RouteConverter
    from .validation import prune

    _require_zilla(source)
    report = MigrationReport(source)
    draft = Draft(report, output.parent)
    root = SourceValue(report, (), _convert_expressions(source.values))
    draft.carry(root.get("name"), "name")
    graph = BindingGraph(root.get("bindings"))
    graph.imply_chain()
    clusters = ClusterConverter(graph, root, draft, convert_catalogs(root.get("catalogs"), draft))
    convert_listen(graph, draft)
    routes = RouteConverter(graph, clusters, draft)
    routes.convert()
    clusters.convert()
    routes.convert_guards(root)
    convert_telemetry(root.get("telemetry"), draft)
    graph.explain_rest()
    root.explain("file")
    report.omit_rest()
    written = prune(draft, output, file) if draft.get(("routes",)) else None
    return draft, written if draft.get(("routes",)) else None


def _require_zilla(source: Source) -> None:
    keys = list(source.values) if isinstance(source.values, Mapping) else []
    if "bindings" in keys:
        return
    if {"kafka", "routes"} <= set(keys):
        raise GatewayError(
            f"{source.name} is a configuration of the gateway already; see gateway check"
        )
    found = f"its first keys are {', '.join(map(str, keys[:5]))}" if keys else "it has no keys"
    raise GatewayError(
        f"{source.name} is no configuration of Zilla, which has `bindings`; {found}. The "
        "documentation has guides for Centrifugo, REST proxies and Server-Sent Events"
    )


def _convert_expressions(value: Any) -> Any:
    """Return values with `${{env.NAME}}` in the gateway's form, `${env.NAME}`."""
    if isinstance(value, dict):
        return {key: _convert_expressions(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_convert_expressions(item) for item in value]
    return _EXPRESSION.sub(r"${env.\1}", value) if isinstance(value, str) else value


def _print_report(draft: Draft, *, show_all: bool) -> None:
    from gateway.config.source.problems import format_loc

    from .report import OutcomeKind

    report = draft.report
    lines = [report.source.format_place(each.loc) + each.describe() for each in report.omissions]
    for loc, outcome in report.outcomes.items() if show_all else ():
        place = report.source.format_place(loc)
        if outcome.kind is OutcomeKind.CARRIED:
            lines.append(f"{place}: is {format_loc(outcome.target)}")
        elif outcome.kind is OutcomeKind.IMPLIED:
            lines.append(f"{place}: {outcome.reason}")
    for line in lines:
        typer.echo(escape_controls(line), err=True)


def _print_next_steps(draft: Draft, output: Path) -> None:
    from .report import OutcomeKind

    routes, outcomes = draft.get(("routes",)), draft.report.outcomes.values()
    omitted = sum(outcome.kind is OutcomeKind.OMITTED for outcome in outcomes)
    # With the file on standard output, that has nothing else.
    is_error = output == STANDARD_OUTPUT
    typer.echo(
        f"wrote {'standard output' if is_error else output}: "
        f"{len(routes)} route{'s' * (len(routes) != 1)}; "
        f"{len(outcomes) - omitted} of {len(outcomes)} values carried over, {omitted} not",
        err=is_error,
    )
    variables = draft.list_variables()
    if variables:
        typer.echo("set the variables:", err=is_error)
    for variable, description in variables.items():
        typer.echo(f"  {variable}{f': {description}' if description else ''}", err=is_error)
    if not is_error:
        print_next_commands(output)
