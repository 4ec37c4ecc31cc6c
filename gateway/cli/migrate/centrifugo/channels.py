"""Convert namespaces of channels to routes.

A channel is a path, and its filter the condition that a record is published into that channel: a
header names it, or the command that the value holds.
"""

from __future__ import annotations

from typing import Any

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.cli.migrate.settle import convert_duration, settle
from gateway.config.types.section import Loc
from gateway.config.types.units import parse_duration

from .access import Access
from .consumers import ConsumedTopic

_ALWAYS_RESUMES = "streams always resume by their ids, as far as Kafka and `history` reach"
_NO_PRESENCE = "there is no presence, and nothing says who joins or leaves; keep Centrifugo for it"
_OWN_HISTORY = (
    "the history is the topic in Kafka, which every stream may read as far as `history` says"
)
_ASK_APPLICATION = "let a guard of type http ask the application, and name it in `guarded`"
_NO_WRITING = (
    "add a route with capability: produce and `guarded`; its `overrides` must say the channel from "
    "the token and not from the path, or clients write into any channel"
)
_ANY_NAMESPACE = (
    "a path with the name of a channel would open those of every namespace, too; add a route "
    "for each channel, with its name in `filters`"
)
_OTHER_USERS = (
    "a path with the name of a channel would open those of other users (#), too; add a route "
    "for each channel, with its name in `filters`"
)
_NO_USERS = "clients must be known, and there are no keys of tokens; add a guard and a route"
_NO_ANONYMOUS = "clients without a token may not connect, so this is for nobody"
_IMPLIED = {
    "force_positioning": _ALWAYS_RESUMES,
    "allow_positioning": _ALWAYS_RESUMES,
    "force_recovery": _ALWAYS_RESUMES,
    "allow_recovery": _ALWAYS_RESUMES,
    "history_meta_ttl": _ALWAYS_RESUMES,
    "allow_history_for_client": _OWN_HISTORY,
    "allow_history_for_subscriber": _OWN_HISTORY,
    "allow_history_for_anonymous": _OWN_HISTORY,
}
_REASONS = {
    "presence": _NO_PRESENCE,
    "join_leave": _NO_PRESENCE,
    "force_push_join_leave": _NO_PRESENCE,
    "map_clients_presence_channel_prefix": _NO_PRESENCE,
    "map_users_presence_channel_prefix": _NO_PRESENCE,
    "allow_presence_for_client": _NO_PRESENCE,
    "allow_presence_for_subscriber": _NO_PRESENCE,
    "allow_presence_for_anonymous": _NO_PRESENCE,
    "history_size": "how much is kept is the retention of the topic; `history` bounds it by time",
    "history_ttl": "is no duration, or there is no history_size with it",
    "force_recovery_mode": "for the latest record of each key use mode: snapshot",
    "auto_cache_recover": "for the latest record of each key use mode: snapshot",
    "allowed_delta_types": "values are sent whole; see `compression`, `fields` and `interval`",
    "delta_publish": "values are sent whole; see `compression`, `fields` and `interval`",
    "allow_tags_filter": "set clientFilters: true, and filter by headers in ?filter=",
    "channel_regex": "names of channels are not checked; no record has any other one",
    "publication_data_format": "values are sent as they are; kafka.topics[].value checks them",
    "subscribe_proxy_enabled": _ASK_APPLICATION,
    "subscribe_proxy_name": _ASK_APPLICATION,
    "sub_refresh_proxy_enabled": "clients are asked for a new token before theirs expires",
    "sub_refresh_proxy_name": "clients are asked for a new token before theirs expires",
    "publish_proxy_enabled": _NO_WRITING,
    "publish_proxy_name": _NO_WRITING,
    "subscribe_stream_proxy_enabled": "streams come from topics only; write to one",
    "subscribe_stream_proxy_name": "streams come from topics only; write to one",
    "subscribe_stream_proxy_bidirectional": "streams come from topics only; write to one",
    "subscription_type": "a stream of records is the only type; see mode: snapshot",
    "map": "for the latest record of each key use mode: snapshot",
    "shared_poll": "streams come from topics only; write to one",
    "allow_subscribe_for_anonymous": _NO_ANONYMOUS,
    "allow_publish_for_anonymous": _NO_WRITING,
    "allow_publish_for_client": _NO_WRITING,
    "allow_publish_for_subscriber": _NO_WRITING,
}
_CHANNEL_REASONS = {
    "proxy": _ASK_APPLICATION,
    "history_meta_ttl": _ALWAYS_RESUMES,
    "publication_data_format": "values are sent as they are; kafka.topics[].value checks them",
    "max_length": "names of channels are parts of paths; the whole may have 64 KiB",
    "private_prefix": "no name of a channel is special; `guarded` of its route protects it",
    "user_separator": "a channel for several users is one path, with a filter for it",
}


class ChannelConverter:
    """Converts the namespaces of one file to routes."""

    def __init__(
        self, root: SourceValue, draft: Draft, topics: list[ConsumedTopic], access: Access
    ) -> None:
        """Create the converter.

        Args:
            root: The whole file.
            topics: The topics that consumers published from.
            access: Who may connect.
        """
        self._root = root
        self._channel = root.get("channel")
        self._draft = draft
        self._topics = topics
        self._access = access
        self._boundary = self._channel.get("namespace_boundary").text or ":"
        self._longest_history = "none"

    def convert(self) -> None:
        """Convert the namespaces, and the channels that tokens name."""
        self._convert_namespace("", self._channel.get("without_namespace"))
        for namespace in self._channel.get("namespaces"):
            self._convert_namespace(namespace.get("name").text, namespace)
        self._convert_personal(self._root.get("client", "subscribe_to_user_personal_channel"))
        if self._access.subscription_guard is not None:
            self._convert_subscriptions(self._access.subscription_guard)
        for name in ("namespace_boundary", "user_boundary"):
            self._channel.get(name).imply("is part of the filters of routes")
        settle(self._channel, _CHANNEL_REASONS)

    def _convert_namespace(self, name: str, source: SourceValue) -> None:
        if not isinstance(source.value, dict):
            return
        history = self._read_history(source)
        subscribe = source.get("allow_subscribe_for_client")
        anonymous = source.get("allow_subscribe_for_anonymous")
        limited = source.get("allow_user_limited_channels")
        locs: list[Loc] = []
        if not name:
            for option in (subscribe, anonymous, limited):
                if option.value is True:
                    option.omit(_ANY_NAMESPACE)
        elif limited.value is True:
            locs += self._add_user_limited(name, history)
            for option in (subscribe, anonymous):
                if option.value is True:
                    option.omit(_OTHER_USERS)
        else:
            locs += self._add_open(name, history, subscribe, anonymous)
        for loc in locs:
            for option in (subscribe, anonymous, limited):
                if option.value is True:
                    option.carry(*loc)
            source.get("name").carry(*loc, "path")
            if history != "none":
                source.get("history_ttl").carry(*loc, "history")
        source.get("name").omit(
            "its channels need a token each, and have the route /subscribed if there are tokens"
        )
        subscribe.imply("a channel needs a token, and has the route /subscribed")
        limited.omit("nobody is known, without a guard")
        for key, reason in _IMPLIED.items():
            source.get(key).imply(reason)
        settle(source, _REASONS)

    def _add_open(
        self, name: str, history: str, subscribe: SourceValue, anonymous: SourceValue
    ) -> list[Loc]:
        """Add the route of a namespace whose channels clients may choose, if they may."""
        is_open = self._access.is_insecure
        is_open |= self._access.has_anonymous and anonymous.value is True
        if not is_open and (subscribe.value is not True or self._access.guard is None):
            if subscribe.value is True:
                subscribe.omit(_NO_USERS)
            return []
        channel = f"{name}{self._boundary}${{params.channel}}"
        path = f"/events/{name}/{{channel}}"
        return [self._add_stream(path, channel, history, name, is_open=is_open)]

    def _add_user_limited(self, name: str, history: str) -> list[Loc]:
        """Add the route of a namespace whose channels are each for one user."""
        guard = self._access.guard
        if guard is None:
            return []
        boundary = self._channel.get("user_boundary").text or "#"
        user = f"${{guarded['{guard}'].identity}}"
        channel = f"{name}{self._boundary}${{params.channel}}{boundary}{user}"
        loc = self._add_stream(f"/events/{name}/{{channel}}/mine", channel, history, name)
        self._draft.comment(loc, "Channels for several users (#a,b) are not matched.")
        return [loc]

    def _read_history(self, source: SourceValue) -> str:
        """Return how far back clients may go: not at all without a size and a time."""
        size = source.get("history_size").value
        ttl = convert_duration(source.get("history_ttl").text)
        if not isinstance(size, int) or size <= 0 or ttl is None or ttl in ("0s", "0ms"):
            return "none"
        longest = self._longest_history
        if longest == "none" or parse_duration(longest) < parse_duration(ttl):
            self._longest_history = ttl
        return ttl

    def _add_stream(
        self, path: str, channel: str, history: str, name: str, *, is_open: bool = False
    ) -> Loc:
        names = [topic.name for topic in self._topics]
        route: dict[str, Any] = {"path": path}
        route |= {"topic": names[0]} if len(names) == 1 else {"topics": names}
        if self._access.guard is not None and not is_open:
            route["guarded"] = [self._access.guard]
        route["filters"] = self._build_filters(channel)
        if not any(topic.channels_header for topic in self._topics):
            route["fields"] = ["/payload/data", "/data"]
        route["history"] = history
        label = f"namespace {name}" if name else "channels without a namespace"
        return self._draft.add_route(route, f"from {label}: channel {channel}")

    def _build_filters(self, channel: str) -> list[dict[str, Any]]:
        filters: list[dict[str, Any]] = []
        for topic in self._topics:
            if topic.channels_header:
                filters.append({"headers": {topic.channels_header: channel}})
            else:
                filters.append({"value": {"/payload/channel": channel}})
                filters.append({"value": {"/channel": channel}})
        return [each for n, each in enumerate(filters) if each not in filters[:n]]

    def _convert_personal(self, source: SourceValue) -> None:
        guard = self._access.guard
        if source.get("enabled").value is True and guard is not None:
            namespace = source.get("personal_channel_namespace").text
            prefix = f"{namespace}{self._boundary}" if namespace else ""
            boundary = self._channel.get("user_boundary").text or "#"
            channel = f"{prefix}{boundary}${{guarded['{guard}'].identity}}"
            loc = self._add_stream("/personal", channel, self._longest_history, namespace)
            source.get("enabled").carry(*loc)
            source.get("personal_channel_namespace").carry(*loc, "filters")
            source.get("single_connection").omit("see listen.limits.perIdentity", loc)
        source.get("enabled").imply("is off, as here")

    def _convert_subscriptions(self, guard: str) -> None:
        """Add the route of clients with a token for one channel, whichever its namespace is."""
        names = [topic.name for topic in self._topics]
        route: dict[str, Any] = {"path": "/subscribed"}
        route |= {"topic": names[0]} if len(names) == 1 else {"topics": names}
        route["guarded"] = [guard]
        route["filters"] = self._build_filters(f"${{guarded['{guard}'].attributes.channel}}")
        if not any(topic.channels_header for topic in self._topics):
            route["fields"] = ["/payload/data", "/data"]
        route["history"] = self._longest_history
        self._draft.add_route(route, "the channel of a subscription token, its claim `channel`")
