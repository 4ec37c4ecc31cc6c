"""Ids of streams and dictionaries as a stranger may make them of others."""

from __future__ import annotations

from gateway.core.log.record import NO_EPOCH, PartitionPosition, TopicPartition
from gateway.core.token.resume_token import overlay_positions, parse_token, seal_token
from gateway.core.token.token_parser import CRC_WIDTH


def move_id(id: str, topic: str, offset: int, issued: int | None = None) -> str:
    """The id with all partitions of its only topic at an offset."""
    token = parse_token(id)
    (positions,) = token.topics
    place = PartitionPosition(offset, NO_EPOCH)
    places = {TopicPartition(topic, number): place for number in range(positions.partition_count)}
    text = id[1 + len(token.view_digest) : -CRC_WIDTH].encode()
    return seal_token(overlay_positions(text, [topic], places, issued), token.view_digest).decode()
