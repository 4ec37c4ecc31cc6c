from __future__ import annotations

import logging

from gateway.kafka.client.log_limit import LOGGERS, OneOfAKind, quieten


def record(text: str, *args: object, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("aiokafka.conn", level, __file__, 1, text, args, None)


def test_one_line_of_a_kind_passes_and_later_says_how_many_did_not():
    now = 0.0
    quiet = OneOfAKind(5.0, clock=lambda: now)
    assert quiet.filter(record("broker %s is gone", 1))
    assert not any(quiet.filter(record("broker %s is gone", n)) for n in range(40))
    now = 5.5
    again = record("broker %s is gone", 2)
    assert quiet.filter(again)
    assert again.getMessage() == "broker 2 is gone (40 more of these in 6s)"


def test_another_kind_passes():
    quiet = OneOfAKind(5.0, clock=lambda: 0.0)
    assert quiet.filter(record("one"))
    assert quiet.filter(record("two"))
    assert quiet.filter(record("one", level=logging.WARNING))


def test_debug_lines_all_pass():
    quiet = OneOfAKind(5.0, clock=lambda: 0.0)
    assert all(quiet.filter(record("same", level=logging.DEBUG)) for _ in range(5))


def test_memory_is_bounded_whatever_is_logged():
    quiet = OneOfAKind(5.0, clock=lambda: 0.0)
    for number in range(5000):
        quiet.filter(record(f"line {number}"))
    assert len(quiet._seen) <= 1001


def test_it_is_put_on_once():
    quieten()
    quieten()
    for name in LOGGERS:
        filters = logging.getLogger(name).filters
        assert sum(isinstance(each, OneOfAKind) for each in filters) == 1
