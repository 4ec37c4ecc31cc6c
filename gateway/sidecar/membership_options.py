"""Turn the settings of a consumer or a reactive group into options of Kafka's consumer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.config.sections.sidecar import Membership
from gateway.kafka.group.consumer import ConsumerOptions


def build_consumer_options(settings: Membership, **changes: Any) -> ConsumerOptions:
    """Build the options from settings; `changes` override or add fields."""
    options = ConsumerOptions(
        protocol=settings.group_protocol,
        session_timeout=settings.session_timeout,
        heartbeat_interval=settings.heartbeat_interval,
        auto_offset_reset=settings.auto_offset_reset,
        isolation=settings.isolation,
        max_partition_bytes=settings.max_partition_fetch_bytes,
        max_fetch_bytes=settings.fetch_max_bytes,
    )
    return replace(options, **changes)
