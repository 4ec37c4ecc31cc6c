"""The parser of WebSocket messages takes no message for another."""

from __future__ import annotations

import pytest
from support.message_parser import MessageParser


def test_only_the_last_record_of_a_message_has_its_position():
    parser = MessageParser()
    parser.feed_message('{"type":"begin","topics":["orders"],"position":"A"}')
    found = parser.feed_message('{"type":"records","records":[{"n":1},"text"],"position":"B"}')
    told = [(each.event_type, each.data, each.last_event_id) for each in found]
    assert told == [("message", '{"n": 1}', "A"), ("message", "text", "B")]
    (deleted,) = parser.feed_message('{"type":"delete","record":{"key":"ada"},"position":"C"}')
    assert (deleted.event_type, deleted.data, deleted.last_event_id) == (
        "delete",
        '{"key": "ada"}',
        "C",
    )


@pytest.mark.parametrize(
    "message",
    [
        '{"type":"records","records":[1]}',
        '{"type":"records","id":"b","records":[1]}',
        '{"type":"records","id":"a","records":[1],"more":2}',
    ],
)
def test_a_message_that_is_not_of_the_subscription_is_refused(message: str):
    with pytest.raises(AssertionError):
        MessageParser("a").feed_message(message)
