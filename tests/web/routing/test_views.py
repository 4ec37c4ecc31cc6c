"""What a request looks at: what the operator opened, narrowed by what the client chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Route, Settings
from gateway.core.channel.filters import Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RequestError, UnknownTopic
from gateway.hub.fanout.view import View
from gateway.web.access import NOBODY, Grant, Granted
from gateway.web.routing.views import MOST, PATTERNS, Fill, chosen_of, may_choose, view_of

CONFIGURED = frozenset({"orders", "stock"})
CLUSTER = CONFIGURED | {"pay-eu", "pay-us", "hr-pay", "__consumer_offsets", "__pay"}


def route(path: str = "/e/{t}", **options: Any) -> Route:
    options.setdefault("topics", ["${params.t}"])
    topics = [{"name": name} for name in sorted(CONFIGURED)]
    made = {"when": [{"path": path}], "with": options}
    kafka = {"servers": ["a:1"], "topics": topics}
    return Settings.model_validate({"kafka": kafka, "routes": [made]}).routes[0]


def view(route: Route, topics: str = "orders", *asked: tuple[str, str], **more: Any) -> View:
    known = more.pop("known", CLUSTER if route.with_.allow else CONFIGURED)
    fill = Fill({"t": topics}, dict(asked), more.pop("granted", NOBODY))
    return view_of(route, fill, chosen_of(asked), known=known, **more)


def topics(route: Route, asked: str) -> tuple[str, ...]:
    return view(route, asked).topics


def refused(status: int, words: str, *args: Any) -> None:
    with pytest.raises(RequestError) as raised:
        view(*args)
    assert raised.value.status == status
    assert all(word in str(raised.value) for word in words.split()), raised.value


# Topics


def test_without_an_allow_list_a_path_names_one_configured_topic():
    assert topics(route(), "orders") == ("orders",)
    for name in ("pay-eu", "orders,stock", "*", "o*", "Orders"):
        with pytest.raises(UnknownTopic):
            topics(route(), name)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("orders", ["orders"]),
        ("stock,orders,stock", ["orders", "stock"]),
        ("pay-eu", ["pay-eu"]),
        ("pay-*", ["pay-eu", "pay-us"]),
        ("*-eu,orders", ["orders", "pay-eu"]),
        ("*", ["orders", "pay-eu", "pay-us", "stock"]),
        ("*pay*", ["pay-eu", "pay-us"]),
        ("pay-new", ["pay-new"]),
    ],
)
def test_a_list_and_patterns_come_to_what_is_allowed(asked: str, found: list[str]):
    """A name that no list of the cluster has yet is asked for by itself: it may be new."""
    allowed = route(allow=["orders", "sto*", "pay-*"])
    assert topics(allowed, asked) == tuple(found)


@pytest.mark.parametrize(
    "asked", ["hr-pay", "orders,hr-pay", "pay", "pay-a b", "pay-\u00e9", "pay-\n"]
)
def test_a_name_that_is_not_allowed_is_unknown(asked: str):
    """Whether there is such a topic is not told."""
    with pytest.raises(UnknownTopic, match="served here"):
        topics(route(allow=["orders", "pay-*"]), asked)


@pytest.mark.parametrize("asked", ["hr-*", "x*", "__*", "*_offsets"])
def test_a_pattern_that_nothing_fits_is_unknown(asked: str):
    refused(404, "fits", route(allow=["orders", "pay-*", "*_offsets"]), asked)


def test_topics_of_kafka_itself_are_there_only_when_named():
    assert "__consumer_offsets" not in topics(route(allow=["*", "__*"]), "*")
    with pytest.raises(UnknownTopic):
        topics(route(allow=["*", "__*"]), "__consumer_offsets")
    named = route(allow=["__consumer_offsets"])
    assert topics(named, "__consumer_offsets") == topics(named, "__*") == ("__consumer_offsets",)


@pytest.mark.parametrize("asked", ["", "orders,", ",orders", "a" * 250, "*" * 250])
def test_a_path_that_names_nothing_is_unknown(asked: str):
    refused(404, "no topic", route(allow=["*"]), asked)


def test_topics_beside_the_chosen_ones_are_always_there():
    both = route(topics=["stock", "${params.t}"], allow=["pay-*"])
    assert topics(both, "pay-eu") == ("pay-eu", "stock")


def test_no_more_than_a_hundred_topics_are_read_at_once():
    allowed, many = route(allow=["*"]), [f"t{n}" for n in range(MOST + 1)]
    refused(400, "at most ask", allowed, ",".join(many))
    refused(400, "patterns", allowed, ",".join(f"{n}*" for n in range(PATTERNS + 1)))
    assert len(view(allowed, ",".join(many[1:])).topics) == MOST
    with pytest.raises(RequestError, match="101 topics fit"):
        view(allowed, "t*", known=many)


def test_the_same_topics_are_the_same_view_however_they_were_asked_for():
    allowed = route(allow=["*"])
    assert (
        view(allowed, "pay-us,pay-eu") == view(allowed, "pay-*") == view(allowed, "pay-eu,pay-us")
    )


# Filters and fields


def sees(view: View, key: bytes, value: bytes = b"{}") -> bool:
    return view.filters.matches(Record(TopicPartition("orders", 0), 0, 0, 0, key, value))


def test_conditions_of_a_route_are_filled_in():
    opened = route(
        filters=[{"value": {"/n": {"gte": "${query.min}"}}, "key": {"prefix": "${params.t}"}}]
    )
    some = view(opened, "orders", ("min", "10"))
    assert sees(some, b"orders-1", b'{"n": 10}')
    assert not sees(some, b"orders-1", b'{"n": 9}') and not sees(some, b"x", b'{"n": 10}')
    refused(400, "value['/n'].gte number 'ten'", opened, "orders", ("min", "ten"))


def test_a_client_narrows_what_the_route_lets_through():
    opened = route(filters=[{"key": {"prefix": "a"}}], clientFilters=True)
    some = view(opened, "orders", ("filter", "key=in(ada,bob)"))
    assert sees(some, b"ada") and not sees(some, b"bob") and not sees(some, b"amy")
    assert sees(view(opened), b"amy")
    both = view(opened, "orders", ("filter", "key^=ad"), ("filter", '{"key": {"prefix": "ada"}}'))
    assert sees(both, b"ada") and not sees(both, b"ad")


def test_a_clients_text_is_no_template():
    opened = route(clientFilters=True)
    assert sees(view(opened, "orders", ("filter", "key=${params.t}")), b"${params.t}")


def test_a_route_that_leaves_no_choice_says_which_option_would():
    refused(403, "?filter= clientFilters", route(), "orders", ("filter", "key=a"))
    refused(403, "?fields= clientFields", route(clientFilters=True), "orders", ("fields", "/a"))
    assert view(route(), "orders", ("filter", ""), ("fields", "")) == view(route())


def test_what_is_no_choice_is_refused_with_what_to_write():
    opened = route(clientFilters=True, clientFields=True)
    refused(400, "?filter= understood /amount>=10", opened, "orders", ("filter", "amount>10"))
    refused(400, "?fields= 'id' /region", opened, "orders", ("fields", "id"))
    refused(400, "?fields= 2 times", opened, "orders", ("fields", "/a"), ("fields", "/b"))


def test_fields_are_chosen_among_those_that_are_shown():
    opened = route(clientFields=True)
    assert view(opened).fields == ()
    assert view(opened, "orders", ("fields", "/b,/a")).fields == ("/a", "/b")
    shown = route(fields=["/id", "/customer/name", "/customer/age"], clientFields=True)
    assert view(shown).fields == ("/customer/age", "/customer/name", "/id")
    for asked, fields in (
        ("/id", ("/id",)),
        ("/id/x", ("/id/x",)),
        ("/customer", ("/customer/age", "/customer/name")),
        ("/customer/name/first,/id", ("/customer/name/first", "/id")),
    ):
        assert view(shown, "orders", ("fields", asked)).fields == fields
    for hidden in ("/secret", "/customers", "/id,/secret", "/i", "/"):
        refused(403, "not show", shown, "orders", ("fields", hidden))


def test_a_field_that_is_not_shown_cannot_be_asked_about():
    """A filter on it would tell its text, letter by letter."""
    shown = route(fields=["/id", "/customer/name"], clientFilters=True)
    for asked in ("/card^=4", "!/card", "/customer", '{"value": {"/id": 1, "/card": 4}}',
                  '[{"key": "a"}, {"value": {"/idx": "1"}}]'):  # fmt: skip
        refused(403, "not show", shown, "orders", ("filter", asked))
        refused(403, "not show", shown, "orders", ("filter", "key=a"), ("filter", asked))
    assert sees(view(shown, "orders", ("filter", "/id=1")), b"", b'{"id": 1}')
    own = route(fields=["/id"], filters=[{"value": {"/card": "4711"}}], clientFilters=True)
    assert sees(view(own, "orders", ("filter", "/id=1")), b"", b'{"id": 1, "card": 4711}')


def test_what_a_client_chooses_is_in_the_digest_of_its_view():
    opened = route(clientFilters=True, clientFields=True)
    asked: list[Mapping[str, str]] = [
        {}, {"filter": "key=a"}, {"filter": "key=b"}, {"filter": "key^=a"}, {"filter": "!key"},
        {"filter": "key>1"}, {"filter": "key>=1"}, {"fields": "/a"}, {"fields": "/b"},
        {"fields": "/a", "filter": "key=a"},
    ]  # fmt: skip
    digests = [view(opened, "orders", *each.items()).digest for each in asked]
    assert len(set(digests)) == len(asked)
    again = view(opened, "orders", ("filter", '{"key": {"in": ["a"]}}'))
    assert again.digest == digests[1]


keys = st.sampled_from(["a", "ab", "b", ""])
chosen = st.sampled_from(["key=a", "key^=a", "key", "key=in(a,b)", "key>1", '[{"key":"b"}]'])
own = st.lists(
    st.sampled_from([{"key": "a"}, {"key": {"prefix": "a"}}, {"key": {"exists": True}}]), max_size=2
)


@given(own, st.lists(chosen, max_size=3), keys)
def test_no_choice_lets_through_what_its_route_does_not(
    filters: list[dict[str, Any]], asked: list[str], key: str
):
    opened = route(filters=filters, clientFilters=True)
    narrowed = view(opened, "orders", *(("filter", each) for each in asked))
    if sees(narrowed, key.encode()):
        assert sees(view(opened), key.encode())
        assert all(
            sees(view(route(clientFilters=True), "orders", ("filter", e)), key.encode())
            for e in asked
        )
    assert asked or filters or narrowed.filters == Filters()


# Claims

GUARDS: dict[str, Any] = {
    "jwt0": {
        "type": "jwt",
        "keys": [{"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}],
        "attributes": {"tenant": "tenant"},
    }
}


def guarded_route(path: str = "/e", **options: Any) -> Route:
    topics = [{"name": name} for name in sorted(CONFIGURED)]
    made = {
        "when": [{"path": path}],
        "guarded": {"jwt0": []},
        "with": {"topic": "orders", **options},
    }
    kafka = {"servers": ["a:1"], "topics": topics}
    return Settings.model_validate({"kafka": kafka, "guards": GUARDS, "routes": [made]}).routes[0]


def ada(*roles: str, **attributes: str) -> Granted:
    return Granted([Grant("jwt0", "ada", frozenset(roles), attributes)])


def test_claims_choose_topic_key_and_header():
    made = guarded_route(
        topic="${guarded['jwt0'].attributes.tenant}",
        filters=[
            {
                "key": "${guarded['jwt0'].identity}",
                "headers": {"t": "${guarded['jwt0'].attributes.tenant}"},
            }
        ],
    )
    seen = view(made, granted=ada(tenant="stock"))
    assert seen.topics == ("stock",)
    other = seen.filters.matches
    tp = TopicPartition("stock", 0)
    assert other(Record(tp, 0, 0, 0, b"ada", b"", (("t", b"stock"),)))
    assert not other(Record(tp, 0, 0, 0, b"eve", b"", (("t", b"stock"),)))
    assert not other(Record(tp, 0, 0, 0, b"ada", b"", (("t", b"orders"),)))


def test_a_claim_that_is_not_there_lets_nobody_in():
    made = guarded_route(filters=[{"key": "${guarded['jwt0'].attributes.tenant}"}])
    for granted in (ada(), NOBODY, ada(tenant="")):
        with pytest.raises(RequestError) as raised:
            view(made, granted=granted)
        assert raised.value.status == 403


def test_a_field_is_shown_to_those_whose_role_it_is():
    email = {"field": "/email", "guarded": {"jwt0": ["support"]}}
    made = guarded_route(fields=["/id", email], clientFields=True, clientFilters=True)
    assert view(made, granted=ada()).fields == ("/id",)
    assert view(made, granted=ada("support")).fields == ("/email", "/id")
    asked = ("fields", "/email")
    with pytest.raises(RequestError, match="does not show"):
        view(made, "orders", asked, granted=ada())
    assert view(made, "orders", asked, granted=ada("support")).fields == ("/email",)
    with pytest.raises(RequestError, match="does not show"):
        view(made, "orders", ("filter", "/email=a"), granted=ada())


def test_who_is_shown_no_field_is_not_shown_them_all():
    made = guarded_route(fields=[{"field": "/email", "guarded": {"jwt0": ["support"]}}])
    with pytest.raises(RequestError) as raised:
        view(made, granted=ada())
    assert raised.value.status == 403


@pytest.mark.parametrize("text", ["key=ada", "/&", "{", "x" * 100_000])
@pytest.mark.parametrize(
    ("name", "option"), [("filter", "clientFilters"), ("fields", "clientFields")]
)
def test_who_may_not_choose_is_told_so_whatever_it_chose(name: str, option: str, text: str):
    """Filters were parsed before, and what was wrong with them was told."""
    with pytest.raises(RequestError) as raised:
        may_choose(route(), [(name, text)] * 5000)
    assert raised.value.status == 403 and option in str(raised.value)
    may_choose(route(), [(name, "")])
    may_choose(route(clientFilters=True, clientFields=True), [(name, text)])
