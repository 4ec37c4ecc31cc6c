from __future__ import annotations

import orjson
import pytest

from gateway.core.log.record import Record, TopicPartition
from gateway.formats import FORMATS, EventFormat, create_format
from gateway.formats import plain as value_module

RECORD = Record(TopicPartition("orders", 3), 42, 0, 1_700_000_000_000, b"ada", b"{}")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("binary", ["error", "base64"])
def test_every_format_tells_a_tombstone_from_a_value(name: str, binary):
    form = create_format(name, binary=binary)
    event, data = form(RECORD._replace(value=None))
    assert (event, orjson.loads(data)["key"]) == ("delete", "ada")
    assert form(RECORD)[0] is None


def test_an_unknown_name_is_refused():
    with pytest.raises(KeyError):
        create_format("xml")


def test_one_entry_adds_a_format(monkeypatch: pytest.MonkeyPatch):
    key_format = EventFormat(lambda binary: lambda record: (None, record.key), None)
    monkeypatch.setitem(FORMATS, "key", key_format)
    assert create_format("key")(RECORD) == (None, b"ada")
    assert value_module.create_value_format("error") is create_format("value")
