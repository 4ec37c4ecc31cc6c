"""Convert channels to routes: clients read what applications send, and write what they receive."""

from __future__ import annotations

import itertools
import re
from typing import Any

from gateway.cli.migrate.draft import Draft
from gateway.config.types.section import Loc

from .document import Channel, Document, Operation
from .messages import convert_messages
from .servers import Servers

MAX_TOPICS = 500  # of one channel, that its parameters give
_SECTION = ("kafka", "topics")
_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_REST = "is documentation, or about how Kafka keeps the topic"
_OPERATION_REST = (
    "says nothing that a route has: clients have no consumer group, and who they are is said by "
    "guards"
)
_REPLIES = "has replies to single clients, so it is no stream; add a route if all may read them"
_REPLY_REST = "replies are matched by the headers that with.correlation names"


def convert_channels(document: Document, servers: Servers, draft: Draft) -> None:
    """Convert the channels of Kafka, and report the others."""
    channels = document.list_channels()
    kept = [each for each in channels if _is_kept(each, servers)]
    topics = {each.name: _convert_topics(each, document, draft) for each in kept}
    replies = {each.reply for channel in kept for each in channel.operations}
    for channel in kept:
        if topics[channel.name]:
            convert_messages(channel, document, topics[channel.name], draft)
        if not channel.operations and channel.name in replies:
            # A stream of it would show everybody the replies to others.
            channel.carry_address(*(topics[channel.name] or [_SECTION])[0])
            channel.source.omit(_REPLIES)
        elif topics[channel.name]:
            _convert_routes(channel, document, topics, draft)
        for operation in channel.operations:
            operation.source.omit(_OPERATION_REST)
        channel.source.omit(_REST)
    for channel in channels:
        for operation in channel.operations:
            operation.source.omit("its channel is not carried over")


def _is_kept(channel: Channel, servers: Servers) -> bool:
    """Return whether a channel is one of the Kafka that is used; report it if not."""
    named = set(channel.servers)
    if not channel.kafka.exists and not (servers.kafka_names & named if named else servers.chosen):
        channel.source.omit("is no channel of Kafka: it has neither a binding nor a server of it")
        return False
    if named and servers.chosen and servers.chosen not in named:
        channel.source.omit(
            f"is on other servers than '{servers.chosen}', which is used; name several clusters in "
            "`kafka`, and add a route"
        )
        return False
    for server in channel.source.get("servers"):
        named_by = server.get("$ref") if server.get("$ref").exists else server
        if named_by.text.split("/")[-1] == servers.chosen:
            named_by.imply("is the server that is used")
    channel.source.get("servers").omit("one server is used; see kafka.servers")
    return True


def _convert_topics(channel: Channel, document: Document, draft: Draft) -> list[Loc]:
    """Add the topics of a channel, and return their places; none if they are not known."""
    template = _get_topic(channel)
    names = _PARAMETER.findall(template)
    values = {name: _list_values(channel, name, document) for name in names}
    missing = [name for name, choices in values.items() if not choices]
    if missing or not template:
        what = f"the values of {{{missing[0]}}}" if missing else "its topic"
        channel.source.omit(
            f"{what} are not listed; add the topics to kafka.topics, and a route for them"
        )
        return []
    locs: list[Loc] = []
    for choice in itertools.islice(itertools.product(*values.values()), MAX_TOPICS):
        topic = template
        for name, value in zip(values, choice, strict=True):
            topic = topic.replace(f"{{{name}}}", value)
        locs.append(_add_topic(topic, channel, draft))
    channel.kafka.get("topic").carry(*locs[0], "name")
    for name in names:
        parameter = document.resolve(channel.source.get("parameters", name))
        for choices in (
            parameter.get("enum"),
            document.resolve(parameter.get("schema")).get("enum"),
        ):
            choices.carry(*_SECTION)
    for key in ("partitions", "replicas", "topicConfiguration", "bindingVersion"):
        channel.kafka.get(key).omit("topics are made in Kafka, and not by the gateway", locs[0])
    return locs


def _get_topic(channel: Channel) -> str:
    return channel.kafka.get("topic").text or channel.address


def _list_values(channel: Channel, name: str, document: Document) -> list[str]:
    """Return the values that a parameter may have; none if they are not listed."""
    parameter = document.resolve(channel.source.get("parameters", name))
    listed = parameter.get("enum").list_texts()
    return listed or document.resolve(parameter.get("schema")).get("enum").list_texts()


def _add_topic(name: str, channel: Channel, draft: Draft) -> Loc:
    topics = draft.get(_SECTION) or []
    known = [topic["name"] for topic in topics]
    if name not in known:
        draft.set(_SECTION, [*topics, {"name": name}])
        known.append(name)
        draft.comment((*_SECTION, len(known) - 1), f"from channel {channel.name}")
    return (*_SECTION, known.index(name))


def _convert_routes(
    channel: Channel, document: Document, topics: dict[str, list[Loc]], draft: Draft
) -> None:
    sends = [each for each in channel.operations if each.is_send]
    receives = [each for each in channel.operations if not each.is_send]
    path = _build_path(channel.address)
    topic = _PARAMETER.sub(r"${params.\1}", _get_topic(channel))
    if sends or not receives:
        loc = draft.add_route({"path": path, "topic": topic}, f"from channel {channel.name}")
        channel.carry_address(*loc, "path")
        for operation in sends:
            operation.source.get("action").carry(*loc, "topic")
    for operation in receives[:1]:
        route: dict[str, Any] = {"path": path, "capability": "produce", "topic": topic}
        reply_topics = topics.get(operation.reply, [])
        if len(reply_topics) == 1:
            route["replyTo"] = draft.get((*reply_topics[0], "name"))
        comment = f"what the application receives from channel {channel.name}"
        loc = draft.add_route(route, comment)
        channel.carry_address(*loc, "path")
        operation.source.get("action").carry(*loc, "capability")
        _settle_reply(operation, loc, document, is_carried="replyTo" in route)
    for operation in channel.operations:
        operation.source.get("channel", "$ref").imply("is the channel of its route")
        for message in operation.source.get("messages"):
            message.get("$ref").imply("is a message of the channel")


def _settle_reply(operation: Operation, loc: Loc, document: Document, *, is_carried: bool) -> None:
    reply = document.resolve(operation.source.get("reply"))
    if is_carried:
        reply.get("channel", "$ref").carry(*loc, "replyTo")
    reply.omit(_REPLY_REST if is_carried else "the topic of replies is not known", loc)


def _build_path(address: str) -> str:
    """Return the path of a channel, in which each parameter is a segment of its own."""
    segments: list[str] = []
    for segment in address.strip("/").split("/"):
        parts = re.split(r"(\{[A-Za-z_][A-Za-z0-9_]*\})", segment)
        segments += [part.strip(".-_:") for part in parts if part.strip(".-_:")]
    return "/".join(["/events", *segments])
