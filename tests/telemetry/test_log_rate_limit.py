from __future__ import annotations

import logging

from gateway.telemetry.logs import LIMITED_LOGGERS, LogRateLimit, limit_log_rate


def build_log_record(text: str, *args: object, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("aiokafka.conn", level, __file__, 1, text, args, None)


def test_one_line_of_a_kind_passes_and_later_says_how_many_did_not():
    now = 0.0
    quiet = LogRateLimit(5.0, clock=lambda: now)
    assert quiet.filter(build_log_record("broker %s is gone", 1))
    assert not any(quiet.filter(build_log_record("broker %s is gone", n)) for n in range(40))
    now = 5.5
    again = build_log_record("broker %s is gone", 2)
    assert quiet.filter(again)
    assert again.getMessage() == "broker 2 is gone (40 more of these in 6s)"


def test_another_kind_passes():
    quiet = LogRateLimit(5.0, clock=lambda: 0.0)
    assert quiet.filter(build_log_record("one"))
    assert quiet.filter(build_log_record("two"))
    assert quiet.filter(build_log_record("one", level=logging.WARNING))


def test_debug_lines_all_pass():
    quiet = LogRateLimit(5.0, clock=lambda: 0.0)
    assert all(quiet.filter(build_log_record("same", level=logging.DEBUG)) for _ in range(5))


def test_memory_is_bounded_whatever_is_logged():
    quiet = LogRateLimit(5.0, clock=lambda: 0.0)
    first = build_log_record("line 0")
    assert quiet.filter(first) and not quiet.filter(first)
    for number in range(1, 1500):
        quiet.filter(build_log_record(f"line {number}"))
    assert quiet.filter(first)  # it was forgotten


def test_it_is_put_on_once():
    limit_log_rate()
    limit_log_rate()
    for name in LIMITED_LOGGERS:
        filters = logging.getLogger(name).filters
        assert sum(isinstance(each, LogRateLimit) for each in filters) == 1
