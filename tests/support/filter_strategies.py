"""Filters, and records that they are about: few values, so that they meet."""

from __future__ import annotations

from decimal import Decimal

import orjson
from hypothesis import strategies as st

from gateway.core.channel.filters import Condition, Filter, Filters
from gateway.core.log.record import Record, TopicPartition

TP = TopicPartition("orders", 0)

texts = st.sampled_from(["", "a", "ab", "b", "1", "10", "1.5", "true", "null", "\u00e9"])
numbers = st.sampled_from([0, 1, 2, 10, -1, 2**64, 2**64 + 1, Decimal("1.5"), Decimal("0.1")])
leaves = texts | st.none() | st.booleans() | st.sampled_from([0, 1, 10, 1.5, 0.1, -1])
values = st.none() | st.dictionaries(
    st.sampled_from("ab"),
    leaves | st.dictionaries(st.just("c"), leaves) | st.lists(leaves, max_size=3),
)
records = st.builds(
    lambda key, headers, value: Record(
        TP, 1, 0, 0, key, None if value is None else orjson.dumps(value), headers
    ),
    st.none() | texts.map(str.encode),
    st.lists(st.tuples(st.sampled_from("xy"), st.none() | texts.map(str.encode)), max_size=3),
    values,
)
value_conditions = st.builds(
    lambda one_of, prefix, bounds: Condition(one_of=one_of, prefix=prefix, bounds=tuple(bounds)),
    st.none() | st.lists(texts, max_size=3).map(tuple),
    st.none() | texts,
    st.lists(
        st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), numbers), min_size=1, max_size=2
    ),
) | st.lists(texts, min_size=1).map(lambda listed: Condition(one_of=tuple(listed)))
conditions = value_conditions | st.booleans().map(lambda there: Condition(exists=there))
filter_values = texts | conditions
single_filters = st.builds(
    lambda key, headers, fields: Filter(
        key.encode() if isinstance(key, str) else key,
        tuple((name, to.encode() if isinstance(to, str) else to) for name, to in headers),
        tuple(fields),
    ),
    st.none() | filter_values,
    st.lists(st.tuples(st.sampled_from("xy"), filter_values), max_size=2),
    st.lists(
        st.tuples(st.sampled_from(["/a", "/b", "/a/c", "/a/1", ""]), filter_values), max_size=2
    ),
)
filter_lists = st.lists(single_filters, max_size=2).map(lambda listed: Filters(tuple(listed)))
