"""`gateway dlq` and `gateway replay`: ask a running sidecar."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import GatewayError

from .commands import EXIT_FAILURE, format_exit_codes
from .options import JsonOption
from .output import escape_controls, format_value, show_progress

if TYPE_CHECKING:
    import httpx


DEFAULT_URL = "http://127.0.0.1:8080"

UrlOption = Annotated[
    str,
    typer.Option("--url", "-u", envvar="GATEWAY_SIDECAR_URL", help="The address of the sidecar."),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="GATEWAY_SIDECAR_TOKEN", metavar="TOKEN", help="A token, if the sidecar is guarded."
    ),
]


class SidecarUnavailable(GatewayError):
    """No sidecar answers, or it cannot do now what it is asked for."""


def send_request(
    method: str,
    url: str,
    token: str | None,
    path: str,
    *,
    parameters: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> httpx.Response:
    """Return a response of a sidecar that is a success.

    Raises:
        SidecarUnavailable: It may succeed later.
        GatewayError: The sidecar refuses the request.
    """
    import httpx

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        response = httpx.request(
            method, f"{url.rstrip('/')}{path}", params=parameters, json=body, headers=headers,
            timeout=60,
        )  # fmt: skip
        if response.is_success:
            return response
        problem = response.json()
        text = f"{problem.get('message')}; {problem.get('description')}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError) as exc:
        raise SidecarUnavailable(f"no sidecar answers at {url} ({exc}); give --url") from None
    raise (SidecarUnavailable if response.status_code == 503 else GatewayError)(text)


MAX_LETTERS = 10_000  # of one answer of the sidecar
MAX_LISTED_BYTES = 4 << 20
MAX_VALUE_CHARS = 2000  # characters of a key, value or header that are printed
_PATH = "/consumers/deadLetter"

dlq = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=format_exit_codes("failure or a record that failed again", reads_config=False),
)

TopicArgument = Annotated[
    str,
    typer.Argument(
        show_default=False, help="The topic, or that of its dead letters: orders or orders.dlq."
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="The group that gave them up; by default the only one of the sidecar.",
    ),
]


@dlq.callback()
def _dlq() -> None:
    """Show, retry and drop records that a back end could not process.

    These dead letters are in the topic `<topic>.dlq`, unchanged, with the reason in their headers.
    A running sidecar that has `deadLetter` in its configuration does the work. A dead letter that
    was retried or dropped is skipped from then on, and stays in the topic for its retention.

    \b
    gateway dlq show orders     print the records and the reasons
    gateway dlq retry orders    send them to the back end again
    gateway dlq drop orders     give them up; asks first
    """


@dlq.command(epilog=format_exit_codes(reads_config=False))
def show(
    topic: TopicArgument,
    group: GroupOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MAX_LETTERS, help="Print at most so many.")
    ] = 20,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> None:
    """Print dead letters: where they are from, and why they failed.

    Those that wait are printed, in the order of each partition: the oldest first.

    \b
    gateway dlq show orders
    gateway dlq show orders --json -n 1000 | jq '.[].stacktrace'
    """
    group = group or _find_group(url, token)
    response = _fetch_letters(url, token, topic, group, limit)
    if as_json:
        typer.echo(response.text)
        return
    lines = [line for letter in response.json() for line in _iter_lines(letter)]
    typer.echo("\n".join(lines) or f"{topic}: no dead letters of {group} wait")


@dlq.command(epilog=format_exit_codes("failure or a record that failed again", reads_config=False))
def retry(
    topic: TopicArgument,
    group: GroupOption = None,
    last: Annotated[bool, typer.Option("--last", help="Skip what fails again.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> None:
    """Send the dead letters that wait to the back end again.

    A record that fails again stays a dead letter, behind the others. It is sent once more if others
    come behind it. `gateway replay` copies dead letters to a topic.

    \b
    gateway dlq retry orders
    gateway dlq retry orders --group billing --last
    """
    group = group or _find_group(url, token)
    parameters = {"topic": topic, "group": group, "lastretry": str(last).lower()}
    counts, pass_count, resent_count = Counter[str](), 0, 0
    returned = Counter[tuple[Any, ...]]()  # a record may be a dead letter twice
    while pass_count < 2:
        result = send_request("GET", url, token, f"{_PATH}/reactive", parameters=parameters).json()
        for each in result["records"]:
            place, retries = _get_place(each["record"]), each["retries"]
            if returned[place, retries - 1]:  # another pass has begun
                returned[place, retries - 1] -= 1
                resent_count += 1
            else:
                resent_count = 0
            if each["outcome"] == "returned":
                returned[place, retries] += 1
            else:
                counts[each["outcome"]] += 1
        if result["error"]:
            done = f"{result['error']}; {counts.total() + returned.total()} were retried before"
            raise GatewayError(f"{result['topic']}: the back end is away: {done}")
        is_over = not (result["untried"] and result["records"])
        if not (is_over or resent_count):
            continue
        # Another request may have begun the pass, or what was returned may come before others. Then
        # these wait, too: one more than those that were returned shows whether they do.
        pass_count += is_over
        letters = _fetch_letters(url, token, topic, group, returned.total() + 1).json()
        waiting = Counter((_get_place(each), each["retries"]) for each in letters) - returned
        if not waiting or resent_count > counts.total() + returned.total():
            break
    counts += Counter(returned=returned.total())
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    typer.echo(f"{result['topic']}: {summary or 'no dead letters wait'}")
    if counts["returned"] or counts["parked"]:
        raise typer.Exit(EXIT_FAILURE)


@dlq.command(epilog=format_exit_codes("failure or not confirmed", reads_config=False))
def drop(
    topic: TopicArgument,
    group: GroupOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> None:
    """Give up the dead letters that wait. Asks first.

    They are skipped from then on. The topic keeps the records for its retention.

    \b
    gateway dlq drop orders
    gateway dlq drop orders --group billing --yes
    """
    group = group or _find_group(url, token)
    count = 0
    while letters := _fetch_letters(url, token, topic, group, MAX_LETTERS).json():
        question = f"{topic}: give up {len(letters)} dead letters of {group}?"
        if not yes and not typer.confirm(question, err=True):
            raise typer.Exit(EXIT_FAILURE)
        places = [letter["deadLetter"] for letter in letters]
        ends = {place["partition"]: place["offset"] for place in places}
        offsets = [{"partition": number, "offset": offset} for number, offset in ends.items()]
        body = {"topic": topic, "group": group, "offsets": offsets}
        send_request("POST", url, token, f"{_PATH}/active/offsets", body=body)
        count += len(letters)
    typer.echo(f"{topic}: {count or 'no'} dead letters of {group} dropped")


def _find_group(url: str, token: str | None) -> str:
    names = [each["group"] for each in send_request("GET", url, token, "/reactive").json()]
    if len(names) != 1:
        raise GatewayError(f"the sidecar has not one group but: {', '.join(names)}; give --group")
    return str(names[0])


def _fetch_letters(
    url: str, token: str | None, topic: str, group: str, limit: int
) -> httpx.Response:
    """Ask for dead letters, with keys and values as text; those that are no text are base64."""
    parameters: dict[str, Any] = {
        "topic": topic,
        "group": group,
        "maxRecords": min(limit, MAX_LETTERS),
    }
    parameters |= {"keyFormat": "string", "valueFormat": "string", "max_bytes": MAX_LISTED_BYTES}
    return send_request("GET", url, token, f"{_PATH}/active", parameters=parameters)


def _get_place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["topic"], record["partition"], record["offset"]


def _iter_lines(letter: Mapping[str, Any]) -> Iterator[str]:
    from gateway.core.times import format_time

    place = letter["deadLetter"]
    yield escape_controls(
        f"{place['topic']}-{place['partition']}@{place['offset']}"
        f"  from {letter['topic']}-{letter['partition']}@{letter['offset']}"
        f"  group {letter['group'] or '-'}  {format_time(place['timestamp'])}"
        f"  retries {letter['retries']}"
    )
    for line in letter["stacktrace"].strip().splitlines():
        yield f"  | {escape_controls(line)}"
    yield f"  key    {_format_value(letter['key'])}"
    yield f"  value  {_format_value(letter['value'])}"
    for name, value in letter["headers"].items():
        yield f"  {escape_controls(name)}: {_format_value(value)}"


def _format_value(value: Any) -> str:
    text = format_value(value)
    more = f"... ({len(text)} characters)" if len(text) > MAX_VALUE_CHARS else ""
    return text[:MAX_VALUE_CHARS] + more


POLL_INTERVAL_S = 0.5  # seconds between two requests for the state of a running replay

replay = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, epilog=format_exit_codes(reads_config=False)
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
    as_json: JsonOption = False, url: UrlOption = DEFAULT_URL, token: TokenOption = None
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
    typer.echo("\n".join(map(_format_status, response.json())) or "no replays")


@replay.command("show", epilog=format_exit_codes(reads_config=False))
def show_replay(id: IdArgument, url: UrlOption = DEFAULT_URL, token: TokenOption = None) -> None:
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
