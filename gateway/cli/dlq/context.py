"""Open the cluster of a configuration's sidecar for a command, and find a queue in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.kafka_connection import open_cluster
from gateway.errors import GatewayError, UnknownTopic

if TYPE_CHECKING:
    from gateway.sidecar.context import Context
    from gateway.sidecar.dead_letter_retry.queue import DeadLetterQueue


@asynccontextmanager
async def open_context(file: Path) -> AsyncIterator[Context]:
    """Open the context of the sidecar's classes without a producer, also without `sidecar`."""
    from gateway.config import load
    from gateway.config.sections.sidecar import Sidecar
    from gateway.formats.codec import Codecs
    from gateway.sidecar.app import get_catalog
    from gateway.sidecar.context import Context
    from gateway.sidecar.http.middleware import allow_anyone
    from gateway.sidecar.http.spec import Spec

    settings = load(file)
    if settings.sidecar is None:
        settings = settings.model_copy(update={"sidecar": Sidecar()})
    assert settings.sidecar is not None
    name = settings.sidecar.kafka or next(iter(settings.clusters))
    kafka = settings.clusters[name]
    if kafka.servers == "embedded":
        raise GatewayError(f"the Kafka of {file} is embedded in the gateway and ends with it")
    async with open_cluster(kafka, name) as cluster:
        context = Context(settings, cluster, Codecs(get_catalog(settings)), allow_anyone, Spec(()))
        try:
            yield context
        finally:
            await context.codecs.close()


async def find_queue(context: Context, topic: str, group: str | None) -> DeadLetterQueue:
    """Return the dead letters of a topic and a group.

    Args:
        group: The group that gave them up. None for the only one that did; if there is none, the
            only one that is configured for the topic.
    """
    from gateway.sidecar.backends import get_dead_letter_ext
    from gateway.sidecar.dead_letter_retry.queue import DeadLetterQueue, count_dead_letters

    ext = get_dead_letter_ext(context.section, group)
    name = topic if topic.endswith(ext) else f"{topic}{ext}"
    try:
        await context.get_topic(name)
    except UnknownTopic as exc:
        raise UnknownTopic(f"{topic} has no dead letters: {exc}", topic=name) from None
    if group is None:
        groups = {
            each.group for each in await count_dead_letters(context.cluster, name, ext, ())
        } - {""}
        if len(groups) > 1:
            which = ", ".join(sorted(groups))
            raise GatewayError(f"{name} has dead letters of several groups: {which}; give --group")
        configured = context.section.reactive.groups if context.section.reactive else ()
        names = groups or {each.group for each in configured if topic in each.topics}
        if len(names) != 1:
            raise GatewayError(f"{name} does not tell which group gave them up; give --group")
        group = next(iter(names))
    return DeadLetterQueue(context.cluster, name, group, ext)
