from __future__ import annotations

import sys

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.filter_strategies import filter_lists, records

from gateway.core.channel.filter_index import MAX_CHEAP_BUCKET_SIZE, FilterIndex
from gateway.core.channel.filters import Condition, Filter, Filters, LazyValue
from gateway.core.log.record import Record, TopicPartition

RECORD = Record(
    TopicPartition("orders", 0),
    1,
    0,
    0,
    b"ada",
    orjson.dumps({"customer": "ada", "total": 12.5, "paid": True}),
    [("region", b"eu"), ("region", b"us"), ("none", None)],
)
OFTEN = Filter(headers=(("region", b"eu"),), fields=(("/customer", "ada"),))


def build_index(*filters: Filters | Filter) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for number, each in enumerate(filters):
        index.add(number, Filters((each,)) if isinstance(each, Filter) else each)
    return index


def count_evaluations(
    index: FilterIndex[int], record: Record, monkeypatch: pytest.MonkeyPatch
) -> int:
    """How many filters are evaluated to find whom a record concerns."""
    count = 0
    matches = Filter.matches

    def count_match(self: Filter, record: Record, value: LazyValue) -> bool:
        nonlocal count
        count += 1
        return matches(self, record, value)

    with monkeypatch.context() as patch:
        patch.setattr(Filter, "matches", count_match)
        index.find(record)
    return count


def count_parses(index: FilterIndex[int], record: Record, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the value is."""
    found = []
    parse = orjson.loads
    with monkeypatch.context() as patch:
        patch.setattr(orjson, "loads", lambda data: found.append(data) or parse(data))
        index.find(record)
    return len(found)


changes = st.lists(st.tuples(st.integers(0, 7), st.none() | filter_lists), max_size=20)


@given(changes, st.lists(records, min_size=1, max_size=4), filter_lists)
def test_an_index_finds_what_every_filter_by_itself_lets_through(changes, some, within):
    index: FilterIndex[int] = FilterIndex()
    there: dict[int, Filters] = {}
    for to, filters in changes:
        if to in there:
            index.remove(to, there.pop(to))
        if filters is not None:
            there[to] = within.narrow(filters) if to % 2 else filters
            index.add(to, there[to])
    for record in some:
        found = list(index.find(record))
        assert sorted(found) == [to for to in sorted(there) if there[to].matches(record)]
    assert len(index) == len(there)


@given(filter_lists, filter_lists, records)
def test_filters_that_name_their_keys_let_no_other_through(route, client, record):
    both = route.narrow(client)
    if both.keys is not None and both.matches(record):
        assert record.key in both.keys


@pytest.mark.parametrize(
    "own",
    [
        lambda n: Filter(key=f"{n}".encode()),
        lambda n: Filter(key=Condition(one_of=(f"{n}", f"{n}-b"))),
        lambda n: Filter(headers=(("who", f"{n}".encode()),)),
        lambda n: Filter(fields=(("/who", f"{n}"),)),
        lambda n: Filter(key=f"{n}".encode(), fields=(("/total", Condition(prefix="1")),)),
        lambda n: Filters((Filter(key=f"{n}".encode()), Filter(fields=(("/who", f"{n}"),)))),
        lambda n: Filters((Filter(fields=(("/total", Condition(prefix="1")),)),)).narrow(
            Filters((Filter(key=f"{n}".encode()),))
        ),
        lambda n: Filters((Filter(key=f"{n}".encode()),)).narrow(
            Filters((Filter(fields=(("/total", Condition(prefix="1")),)),))
        ),
    ],
)
def test_of_a_thousand_filters_on_values_of_their_own_at_most_one_is_asked(own, monkeypatch):
    index = build_index(*map(own, range(1000)))
    value = orjson.dumps({"who": "500", "total": 12})
    record = RECORD._replace(key=b"500", headers=[("who", b"500")], value=value)
    assert list(index.find(record)) == [500]
    assert count_evaluations(index, record, monkeypatch) <= 3  # of an OR each, and of an AND both
    assert (
        count_evaluations(index, record._replace(key=b"x", headers=[], value=None), monkeypatch)
        == 0
    )


def test_an_equality_alone_is_not_asked_again_and_the_rest_of_an_and_is(monkeypatch):
    assert count_evaluations(build_index(Filter(key=b"ada")), RECORD, monkeypatch) == 0
    assert (
        count_evaluations(
            build_index(Filter(key=Condition(one_of=("ada", "bob")))), RECORD, monkeypatch
        )
        == 0
    )
    assert count_evaluations(build_index(OFTEN), RECORD, monkeypatch) == 1
    both = Condition(one_of=("ada", "bob"), prefix="b")
    assert count_evaluations(build_index(Filter(key=both)), RECORD, monkeypatch) == 1
    assert list(build_index(Filter(key=both)).find(RECORD)) == []


def test_of_two_parts_the_one_that_all_have_in_common_is_not_looked_up(monkeypatch):
    """`region: eu` of the route, `/customer` of the client: nearly all are found by the field."""
    own = [
        Filter(headers=OFTEN.headers, fields=(("/customer", f"{n}"),))
        for n in range(100 * MAX_CHEAP_BUCKET_SIZE)
    ]
    index = build_index(*own, OFTEN)
    assert list(index.find(RECORD)) == [100 * MAX_CHEAP_BUCKET_SIZE]
    assert count_evaluations(index, RECORD, monkeypatch) <= MAX_CHEAP_BUCKET_SIZE + 1


def test_the_value_is_parsed_once_however_many_look_into_it_and_not_for_keys_alone(monkeypatch):
    keys = [Filter(key=b"%d" % n) for n in range(10)] + [Filter(key=b"ada")]
    assert count_parses(build_index(*keys), RECORD, monkeypatch) == 0
    into = Filter(key=b"bob", fields=(("/paid", "true"),))
    assert count_parses(build_index(*keys, into), RECORD, monkeypatch) == 0
    fields = [Filter(fields=((f"/{n}", "x"),)) for n in range(10)]
    big = Filter(fields=(("/total", Condition(bounds=(("gt", 10),))),))
    index = build_index(*keys, *fields, big)
    assert list(index.find(RECORD)) == [10, 21]
    assert count_parses(index, RECORD, monkeypatch) == 1


def test_a_value_that_is_no_json_is_reported_if_a_filter_looks_into_it():
    """Clients missed such records, and nothing said so."""
    unread: list[Record] = []
    index: FilterIndex[int] = FilterIndex(unread.append)
    index.add(1, Filters((Filter(key=b"ada"),)))
    bad = RECORD._replace(value=b'{"total": NaN}')
    assert list(index.find(bad)) == [1] and unread == []
    index.add(2, Filters((Filter(fields=(("/total", "7"),)),)))
    assert list(index.find(bad)) == [1] and unread == [bad]
    index.find(RECORD)
    index.find(RECORD._replace(value=None))
    assert unread == [bad]


def test_what_was_removed_leaves_nothing_behind():
    single = [OFTEN, Filter(key=b"ada"), Filter(key=Condition(prefix="a")), Filter()]
    filters = [*(Filters((each,)) for each in single), Filters((Filter(key=b"ada"),) * 2)]
    index = build_index(*filters)
    for number, each in enumerate(filters):
        index.remove(number, each)
    assert list(index.find(RECORD)) == []
    assert vars(index) == vars(FilterIndex())
    with pytest.raises(KeyError):
        index.remove(0, filters[0])


def test_a_header_twice_in_a_record_finds_its_client_once():
    record = RECORD._replace(headers=[("region", b"eu")] * 2)
    assert list(build_index(Filter(headers=(("region", b"eu"),))).find(record)) == [0]


@pytest.mark.parametrize(
    ("filters", "keys"),
    [
        (Filters(), None),
        (Filters((Filter(key=b"a"),)), {b"a"}),
        (Filters((Filter(key=Condition(one_of=("a", "b"))), Filter(key=b"c"))), {b"a", b"b", b"c"}),
        (Filters((Filter(key=b"a"), Filter(headers=(("h", b"v"),)))), None),
        (Filters((Filter(key=Condition(prefix="a")),)), None),
        (Filters((OFTEN,)).narrow(Filters((Filter(key=b"a"),))), {b"a"}),
        (Filters((Filter(key=b"a"),)).narrow(Filters((OFTEN,))), {b"a"}),
        (Filters((Filter(key=b"a"),)).narrow(Filters((Filter(key=b"b"),))), set()),
    ],
)
def test_the_keys_that_filters_name(filters: Filters, keys: set[bytes] | None):
    assert filters.keys == keys


@pytest.mark.parametrize("pointer", ["/x{}", "/customer/x{}", "/list/9{}", "/list/0/x{}"])
def test_fields_that_a_record_does_not_have_are_not_looked_for(pointer):
    """One client's 64,000 conditions, each on a field of its own, took 40 ms of each record."""
    filters = [Filter(fields=((pointer.format(n), "1"),)) for n in range(500)]
    index = build_index(*filters, Filter(fields=(("/list/0/a", "1"),)))
    record = RECORD._replace(value=orjson.dumps({"customer": {"a": "1"}, "list": [{"a": "1"}]}))
    calls = list[str]()
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        found = list(index.find(record))
    finally:
        sys.setprofile(None)
    assert found == [500]
    assert len(calls) < 100
    for number, each in enumerate(filters):
        index.remove(number, Filters((each,)))
    assert list(index.find(record)) == [500]
