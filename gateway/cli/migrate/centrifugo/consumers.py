"""Convert the consumers of Kafka to a cluster and its topics."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.cli.migrate.settle import find_file, settle
from gateway.config.types.section import Loc

DEFAULT_CHANNELS_HEADER = "centrifugo-channels"
_SECTION = ("kafka",)
_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512")
_NO_GROUP = "clients read the topics themselves, without a consumer group"
_OWN_FETCHES = "how much is fetched and kept is bound by `memory` and kafka.topics[].cache"
_REASONS = {
    "max_poll_records": _OWN_FETCHES,
    "fetch_max_bytes": _OWN_FETCHES,
    "fetch_max_wait": _OWN_FETCHES,
    "partition_queue_max_size": _OWN_FETCHES,
    "dial_timeout": "a broker may take kafka.requestTimeout to respond",
    "assume_role_arn": "the IAM of AWS MSK is not supported; use scram-sha-512 there",
}
_MODE_REASONS = {
    "idempotency_key_header": "a record is in its topic once; let producers be idempotent",
    "delta_header": "values are sent whole; see `compression`, `fields` and `interval` of routes",
    "version_header": "the order of records is that of their partition",
    "version_epoch_header": "the order of records is that of their partition",
    "tags_header_prefix": "filter by headers: `filters` of routes, or clientFilters and ?filter=",
}


@dataclass(frozen=True, slots=True)
class ConsumedTopic:
    """A topic that a consumer published from.

    Attributes:
        channels_header: The header that names the channels of a record; empty if records are
            commands for Centrifugo, which name the channel in their value.
    """

    name: str
    channels_header: str


def convert_consumers(source: SourceValue, draft: Draft) -> list[ConsumedTopic]:
    """Convert the consumers that read Kafka, and return their topics."""
    first: SourceValue | None = None
    topics: dict[str, ConsumedTopic] = {}
    for consumer in source:
        kind = consumer.get("type").text
        if kind != "kafka":
            consumer.omit(f"the gateway reads Kafka only, not {kind or 'this'}; write to a topic")
            continue
        if consumer.get("enabled").value is not True:
            consumer.omit("is not enabled")
            continue
        kafka = consumer.get("kafka")
        if first is None:
            first = kafka
            _convert_cluster(kafka, draft)
        elif kafka.get("brokers").value != first.get("brokers").value:
            consumer.omit("has other brokers; name the clusters in `kafka`, and add routes for it")
            continue
        consumer.get("name").imply("consumers have no names here")
        consumer.get("type").carry(*_SECTION, "servers")
        consumer.get("enabled").carry(*_SECTION, "servers")
        for topic in _convert_topics(kafka, draft):
            topics.setdefault(topic.name, topic)
        for name in ("brokers", "tls", "sasl_mechanism", "sasl_user", "sasl_password"):
            if kafka is not first and kafka.get(name).value == first.get(name).value:
                kafka.get(name).carry(*_SECTION, "servers")
            if kafka is not first:
                kafka.get(name).omit("is not that of the consumer before, which is used")
        settle(kafka, _REASONS)
        kafka.get("consumer_group").imply(_NO_GROUP)
        kafka.get("instance_id").imply(_NO_GROUP)
        for name in ("postgresql", "nats_jetstream", "redis_stream", "google_pub_sub", "aws_sqs"):
            consumer.get(name).omit("is not read by a consumer of type kafka")
    return list(topics.values())


def _convert_topics(kafka: SourceValue, draft: Draft) -> list[ConsumedTopic]:
    mode = kafka.get("publication_data_mode")
    is_data = mode.get("enabled").value is True
    header = mode.get("channels_header").text or DEFAULT_CHANNELS_HEADER
    found: list[ConsumedTopic] = []
    for name in kafka.get("topics"):
        topics = draft.get((*_SECTION, "topics")) or []
        known = [topic["name"] for topic in topics]
        if name.text and name.text not in known:
            options = {"name": name.text} if is_data else {"name": name.text, "value": _JSON}
            draft.set((*_SECTION, "topics"), [*topics, options])
            known.append(name.text)
        if name.text:
            loc: Loc = (*_SECTION, "topics", known.index(name.text))
            name.carry(*loc, "name")
            found.append(ConsumedTopic(name.text, header if is_data else ""))
            _convert_isolation(kafka.get("fetch_read_uncommitted"), loc, draft)
    place = (*_SECTION, "topics")
    if is_data and found:
        draft.comment(
            place,
            "A record whose header names several channels (a,b) is in none of them: let producers "
            "write a record for each.",
        )
        mode.get("enabled").carry(*place)
        mode.get("channels_header").carry(*place)
        settle(mode, _MODE_REASONS)
        kafka.get("method_header").imply("values are data, and no commands")
    else:
        mode.get("enabled").imply("values are commands, of which clients are shown the data")
        mode.omit("is not enabled")
        kafka.get("method_header").omit(
            "commands are not carried out: clients are shown the data of those that publish; let "
            "producers write the data alone, with the channel in a header or as the key",
            place,
        )
    return found


_JSON = {"model": "json"}


def _convert_isolation(source: SourceValue, loc: Loc, draft: Draft) -> None:
    if source.value is True:
        draft.set((*loc, "isolation"), "read_uncommitted")
        source.carry(*loc, "isolation")
    source.imply("read_committed is the default")


def _convert_cluster(kafka: SourceValue, draft: Draft) -> None:
    draft.comment(_SECTION, "from the consumers of type kafka")
    draft.carry(kafka.get("brokers"), *_SECTION, "servers")
    if not kafka.get("brokers").exists:
        servers = draft.need_variable("KAFKA_SERVERS", "HOST:PORT of some brokers, with commas")
        draft.set((*_SECTION, "servers"), servers)
    _convert_tls(kafka.get("tls"), draft)
    mechanism = kafka.get("sasl_mechanism")
    if not mechanism.text:
        return
    section = (*_SECTION, "security", "sasl")
    if mechanism.text not in _MECHANISMS:
        mechanism.omit(f"{mechanism.text} is not supported; use scram-sha-512, or oauthbearer")
        for name in ("sasl_user", "sasl_password"):
            kafka.get(name).omit("there is no SASL without its mechanism")
        return
    draft.carry(mechanism, *section, "mechanism")
    user = kafka.get("sasl_user")
    draft.carry(user, *section, "username")
    if not user.exists:
        username = draft.need_variable("KAFKA_USERNAME", "the user of the gateway in Kafka")
        draft.set((*section, "username"), username)
    password = draft.need_variable("KAFKA_PASSWORD", "the password of the gateway's user in Kafka")
    draft.set((*section, "password"), password)
    kafka.get("sasl_password").carry(*section, "password")


def _convert_tls(tls: SourceValue, draft: Draft) -> None:
    if tls.get("enabled").value is not True:
        tls.get("enabled").imply("is off, as here")
        tls.omit("is not enabled")
        return
    section = (*_SECTION, "security", "tls")
    draft.set(section, {})
    tls.get("enabled").carry(*section)
    files = (
        ("server_ca_pem", "ca", "KAFKA_CA", "PEM file of the brokers' certificate authorities"),
        ("cert_pem", "certificate", "KAFKA_CERTIFICATE", "PEM file of the gateway's certificate"),
        ("key_pem", "key", "KAFKA_KEY", "PEM file of its private key"),
    )
    for name, option, variable, description in files:
        carry_file(tls.get(name), (*section, option), variable, description, draft)
    if tls.get("insecure_skip_verify").value is True:
        draft.set((*section, "verify"), False)
        tls.get("insecure_skip_verify").carry(*section, "verify")
    tls.get("insecure_skip_verify").imply("certificates are verified")
    tls.get("client_ca_pem").omit("is for servers, and Kafka is connected to")
    tls.get("server_name").omit("the name of each broker is sent and verified", section)


def carry_file(
    source: SourceValue, target: Loc, variable: str, description: str, draft: Draft
) -> None:
    """Carry a PEM file, or let a variable name it if the source holds its content."""
    if not source.exists:
        return
    file = find_file(source, draft.folder)
    draft.set(target, draft.need_variable(variable, description) if file is None else file)
    source.carry(*target)
