"""`gateway replay`: start, list and cancel replays of a running sidecar."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .commands import EXIT_FAILURE, format_exit_codes
from .output import show_progress
from .sidecar_client import DEFAULT_URL, SidecarUnavailable, TokenOption, UrlOption, send_request

if TYPE_CHECKING:
    from collections.abc import Mapping

POLL_INTERVAL_S = 0.5  # seconds between two requests for the state of a running replay

replay = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=format_exit_codes(reads_config=False),
)

IdArgument = Annotated[
    str, typer.Argument(show_default=False, help="The replay's id, as `start` and `list` print it.")
]


@replay.callback()
def _replay() -> None:
    """Send records of a topic again.

    They are sent to another topic, or to the back end of a group. A running sidecar does the work;
    if it stops, another sidecar continues. Copies in a topic are written exactly once. A back end
    may get its last batches twice.

    \b
    gateway replay start orders --to-topic orders-again
    gateway replay start orders --to-backend --group billing --from-time 2026-01-31T12:00:00Z
    gateway replay start orders --partition 3 --from 1000 --until 2000 --to-topic fixed --wait
    gateway replay list
    """


@replay.command(
    epilog=format_exit_codes("failure or, with --wait, a failed replay", reads_config=False)
)
def start(
    topic: Annotated[str, typer.Argument(show_default=False, help="The topic to read.")],
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Write copies to this topic.")
    ] = None,
    to_backend: Annotated[
        bool, typer.Option("--to-backend", help="Send them to the back end of --group.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="GROUP", help="A reactive group of the sidecar."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Read only this partition.")
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="OFFSET", help="The first offset, with --partition."),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Start at this time instead: 2026-01-31T12:00:00Z, or milliseconds.",
        ),
    ] = None,
    until: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="The first offset that is left out.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the replay has ended.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> None:
    """Start a replay, and print its id. It ends at the records that the topic has now.

    \b
    gateway replay start orders --to-topic orders-again
    gateway replay start orders --to-backend --group billing --wait
    """
    if (to_topic is not None) == to_backend:
        raise typer.BadParameter("give either --to-topic or --to-backend")
    is_millis = from_time is not None and re.fullmatch(r"[0-9]{1,18}", from_time)
    start_time = int(from_time) if from_time is not None and is_millis else from_time
    options = {
        "topic": topic,
        "partition": partition,
        "startOffset": start_offset,
        "startTime": start_time,
        "endOffset": until,
        "consumerGroup": group,
        "destination": "backend" if to_backend else "topic",
        "destinationTopic": to_topic,
    }
    body = {name: value for name, value in options.items() if value is not None}
    status = send_request("POST", url, token, "/replays", body=body).json()
    typer.echo(status["id"])
    if wait:
        _wait_for_end(url, token, status)


@replay.command("list", epilog=format_exit_codes(reads_config=False))
def list_(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, as the sidecar returns it.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> None:
    """List all replays, oldest first. Those that ended are kept for seven days.

    \b
    gateway replay list
    gateway replay list --json | jq '.[].state'
    """
    response = send_request("GET", url, token, "/replays")
    if as_json:
        typer.echo(response.text)
        return
    replays = response.json()
    for each in replays:
        typer.echo(_format_status(each))
    if not replays:
        typer.echo("no replays")


@replay.command(epilog=format_exit_codes(reads_config=False))
def show(id: IdArgument, url: UrlOption = DEFAULT_URL, token: TokenOption = None) -> None:
    """Print everything about one replay, as JSON.

    \b
    gateway replay show 5f1c9a7e3b2d4c68a0e1f2b3c4d5e6f7
    """
    status = send_request("GET", url, token, f"/replays/{id}").json()
    typer.echo(json.dumps(status, indent=2))


@replay.command(epilog=format_exit_codes(reads_config=False))
def cancel(id: IdArgument, url: UrlOption = DEFAULT_URL, token: TokenOption = None) -> None:
    """Stop a replay. What it has written stays.

    \b
    gateway replay cancel 5f1c9a7e3b2d4c68a0e1f2b3c4d5e6f7
    """
    typer.echo(_format_status(send_request("DELETE", url, token, f"/replays/{id}").json()))


def _wait_for_end(url: str, token: str | None, status: Mapping[str, Any]) -> None:
    with show_progress() as update:
        while status["state"] == "running":
            time.sleep(POLL_INTERVAL_S)
            with suppress(SidecarUnavailable):
                status = send_request("GET", url, token, f"/replays/{status['id']}").json()
            update(status["progress"], 1.0, f"{status['records']} records")
    typer.echo(_format_status(status), err=True)
    if status["state"] != "done":
        raise typer.Exit(EXIT_FAILURE)


def _format_status(status: Mapping[str, Any]) -> str:
    target = status["destinationTopic"] or f"the back end of {status['consumerGroup']}"
    missing = Counter[str]()
    for gap in status["gaps"]:
        missing[gap["reason"]] += gap["endOffset"] - gap["startOffset"]
    parts = [
        status["id"],
        status["state"],
        f"{status['topic']} to {target}",
        f"{status['progress']:.0%}",
        f"{status['records']} records",
        f"{status['recordsPerSecond']:.0f}/s",
        *([f"{status['deadLetters']} dead letters"] if status["deadLetters"] else []),
        *(f"{count} offsets missing: {reason}" for reason, count in missing.items()),
        *([status["error"]] if status["error"] else []),
    ]
    return "  ".join(parts)
