"""`gateway replay`: asks a sidecar that runs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import GatewayError

from .commands import EXIT_FAILURE

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_URL = "http://127.0.0.1:8080"
POLL_INTERVAL_S = 0.5  # seconds between looks at one that runs

replay = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 1 failure, 2 wrong usage, 130 by ^C.",
)

UrlOption = Annotated[
    str, typer.Option("--url", "-u", envvar="GATEWAY_SIDECAR_URL", help="Where the sidecar is.")
]
TokenOption = Annotated[
    str | None,
    typer.Option(envvar="GATEWAY_SIDECAR_TOKEN", metavar="TOKEN", help="For one that is guarded."),
]
IdArgument = Annotated[
    str, typer.Argument(show_default=False, help="As `start` and `list` tell it.")
]


@replay.callback()
def _replay() -> None:
    """Records of a topic once more: to another topic, or to the back end of a group.

    A sidecar does it, and another one goes on where that is gone: copies in a topic are there
    exactly once, a back end may get its last batches twice.

    \b
    gateway replay start orders --to-topic orders-again
    gateway replay start orders --to-backend --group billing --from-time 2026-01-31T12:00:00Z
    gateway replay start orders --partition 3 --from 1000 --until 2000 --to-topic fixed --wait
    gateway replay list
    """


@replay.command()
def start(
    topic: Annotated[str, typer.Argument(show_default=False, help="Whose records.")],
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Copies of them go there.")
    ] = None,
    to_backend: Annotated[
        bool, typer.Option("--to-backend", help="The back end of the group gets them.")
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Of the sidecar's.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only of it.")] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="OFFSET", help="The first, of one partition."),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="In its place: 2026-01-31T12:00:00Z, or milliseconds."),
    ] = None,
    until: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="The first that is left out.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is over.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> None:
    """Start one, of what is there now; prints its id."""
    if (to_topic is not None) == to_backend:
        raise typer.BadParameter("give either --to-topic or --to-backend")
    at = int(from_time) if from_time is not None and from_time.isdecimal() else from_time
    asked = {
        "topic": topic,
        "partition": partition,
        "startOffset": start_offset,
        "startTime": at,
        "endOffset": until,
        "consumerGroup": group,
        "destination": "backend" if to_backend else "topic",
        "destinationTopic": to_topic,
    }
    body = {name: value for name, value in asked.items() if value is not None}
    told = _send_request("POST", url, token, "/replays", body)
    typer.echo(told["id"])
    if wait:
        _wait_for_end(url, token, told)


@replay.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="As the sidecar has them.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> None:
    """All replays, oldest first; those that are over for seven days."""
    told = _send_request("GET", url, token, "/replays")
    if as_json:
        typer.echo(json.dumps(told))
        return
    for each in told:
        typer.echo(_format_status(each))
    if not told:
        typer.echo("no replays")


@replay.command()
def show(id: IdArgument, url: UrlOption = DEFAULT_URL, token: TokenOption = None) -> None:
    """All that is known of one, as JSON."""
    typer.echo(json.dumps(_send_request("GET", url, token, f"/replays/{id}"), indent=2))


@replay.command()
def cancel(id: IdArgument, url: UrlOption = DEFAULT_URL, token: TokenOption = None) -> None:
    """Have nothing more of it written; what is there stays."""
    typer.echo(_format_status(_send_request("DELETE", url, token, f"/replays/{id}")))


def _wait_for_end(url: str, token: str | None, status: Mapping[str, Any]) -> None:
    from gateway.cli.dlq.report import show_progress

    with show_progress(100) as advance:
        done = 0
        while status["state"] == "running":
            time.sleep(POLL_INTERVAL_S)
            status = (
                _send_request(
                    "GET", url, token, f"/replays/{status['id']}", tolerate_unavailable=True
                )
                or status
            )
            advance(int(status["progress"] * 100) - done)
            done = int(status["progress"] * 100)
    typer.echo(_format_status(status), err=True)
    if status["state"] != "done":
        raise typer.Exit(EXIT_FAILURE)


def _format_status(status: Mapping[str, Any]) -> str:
    target = status["destinationTopic"] or f"the back end of {status['consumerGroup']}"
    lost = sum(gap["endOffset"] - gap["startOffset"] for gap in status["gaps"])
    parts = [
        status["id"],
        status["state"],
        f"{status['topic']} to {target}",
        f"{status['progress']:.0%}",
        f"{status['records']} records",
        f"{status['recordsPerSecond']:.0f}/s",
        *([f"{status['deadLetters']} dead letters"] if status["deadLetters"] else []),
        *([f"{lost} offsets gone by retention"] if lost else []),
        *([status["error"]] if status["error"] else []),
    ]
    return "  ".join(parts)


def _send_request(
    method: str,
    url: str,
    token: str | None,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    tolerate_unavailable: bool = False,
) -> Any:
    """patient: None where it cannot be asked now. Raises GatewayError."""
    import httpx

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        answer = httpx.request(
            method, f"{url.rstrip('/')}{path}", json=body, headers=headers, timeout=60
        )
        told = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        if tolerate_unavailable:
            return None
        raise GatewayError(f"no sidecar answers at {url} ({exc}); give --url") from None
    if answer.is_success:
        return told
    if tolerate_unavailable and answer.status_code == 503:
        return None
    raise GatewayError(f"{told.get('message')}; {told.get('description')}")
