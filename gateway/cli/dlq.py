"""`gateway dlq`: show, retry and drop dead letters by a running sidecar."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import GatewayError

from .commands import EXIT_FAILURE, format_exit_codes
from .output import escape_controls
from .sidecar_client import DEFAULT_URL, TokenOption, UrlOption, send_request

if TYPE_CHECKING:
    import httpx

MAX_LETTERS = 10_000  # of one answer of the sidecar
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, as the sidecar returns it.")
    ] = False,
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
    letters = response.json()
    for letter in letters:
        for line in _iter_lines(letter):
            typer.echo(line)
    if not letters:
        typer.echo(f"{topic}: no dead letters of {group} wait")


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
    outcomes: dict[tuple[Any, ...], str] = {}
    has_more = True
    while has_more:
        result = send_request("GET", url, token, f"{_PATH}/reactive", parameters=parameters).json()
        outcomes |= {_get_place(each["record"]): each["outcome"] for each in result["records"]}
        if result["error"]:
            done = f"{result['error']}; {len(outcomes)} were retried before"
            raise GatewayError(f"{result['topic']}: the back end is away: {done}")
        # Those that were returned wait, too. One more than these shows whether others do.
        returned = list(outcomes.values()).count("returned")
        letters = _fetch_letters(url, token, topic, group, returned + 1)
        has_more = any(_get_place(letter) not in outcomes for letter in letters.json())
    counts = Counter(outcomes.values())
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
    """Return the only reactive group of the sidecar."""
    names = [each["group"] for each in send_request("GET", url, token, "/reactive").json()]
    if len(names) != 1:
        raise GatewayError(f"the sidecar has not one group but: {', '.join(names)}; give --group")
    return str(names[0])


def _fetch_letters(
    url: str, token: str | None, topic: str, group: str, limit: int
) -> httpx.Response:
    """Ask for dead letters, with keys and values as text; those that are no text are base64."""
    parameters = {"topic": topic, "group": group, "maxRecords": min(limit, MAX_LETTERS)}
    parameters |= {"keyFormat": "string", "valueFormat": "string"}
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
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = escape_controls(text)
    more = f"... ({len(text)} characters)" if len(text) > MAX_VALUE_CHARS else ""
    return text[:MAX_VALUE_CHARS] + more
