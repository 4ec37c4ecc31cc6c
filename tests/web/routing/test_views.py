"""What a request looks at: what the operator opened, narrowed by what the client chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Route, Settings, Template
from gateway.core.channel.filters import Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RequestError, UnknownTopic
from gateway.hub.reads.view import View
from gateway.web.access import NO_GRANTS, Grant, Granted
from gateway.web.routing.views import (
    MAX_PATTERNS,
    MAX_TOPICS,
    TemplateValues,
    build_route_view,
    check_selection_allowed,
    parse_selection,
)

CONFIGURED = frozenset({"orders", "stock"})
CLUSTER = CONFIGURED | {"pay-eu", "pay-us", "hr-pay", "__consumer_offsets", "__pay"}


def build_route(path: str = "/e/{t}", **options: Any) -> Route:
    options.setdefault("topics", ["${params.t}"])
    topics = [{"name": name} for name in sorted(CONFIGURED)]
    made = {"when": [{"path": path}], "with": options}
    kafka = {"servers": ["a:1"], "topics": topics}
    return Settings.model_validate({"kafka": kafka, "routes": [made]}).routes[0]


def build_view(route: Route, topics: str = "orders", *query: tuple[str, str], **more: Any) -> View:
    known = more.pop("known", CLUSTER if route.with_.allow else CONFIGURED)
    fill = TemplateValues({"t": topics}, dict(query), more.pop("granted", NO_GRANTS))
    return build_route_view(route, fill, parse_selection(query), known_topics=known, **more)


def get_topics(route: Route, query: str) -> tuple[str, ...]:
    return build_view(route, query).topics


def check_refused(status: int, words: str, *args: Any) -> None:
    with pytest.raises(RequestError) as raised:
        build_view(*args)
    assert raised.value.status == status
    assert all(word in str(raised.value) for word in words.split()), raised.value


def test_an_attribute_that_a_token_lacks_is_named_with_its_claim():
    """Only the name of the attribute was said, which no token has."""
    problems = {"customer": "the token has no claim 'customer_id'"}
    granted = Granted([Grant("login", "ada", problems=problems)])
    template = Template.parse("${guarded['login'].attributes.customer}")
    with pytest.raises(RequestError) as raised:
        TemplateValues(granted=granted).render(template)
    assert raised.value.status == 403
    assert str(raised.value) == (
        "the attribute 'customer' of guard 'login' is missing "
        "(the token has no claim 'customer_id'); this route needs it"
    )


# Topics


def test_without_an_allow_list_a_path_names_one_configured_topic():
    assert get_topics(build_route(), "orders") == ("orders",)
    for name in ("pay-eu", "orders,stock", "*", "o*", "Orders"):
        with pytest.raises(UnknownTopic):
            get_topics(build_route(), name)


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
    allowed = build_route(allow=["orders", "sto*", "pay-*"])
    assert get_topics(allowed, asked) == tuple(found)


@pytest.mark.parametrize(
    "asked", ["hr-pay", "orders,hr-pay", "pay", "pay-a b", "pay-\u00e9", "pay-\n"]
)
def test_a_name_that_is_not_allowed_is_unknown(asked: str):
    """Whether there is such a topic is not told."""
    with pytest.raises(UnknownTopic, match="served here"):
        get_topics(build_route(allow=["orders", "pay-*"]), asked)


def test_a_name_beside_a_pattern_is_of_a_topic_that_exists():
    """Thousands were waited for, like topics that the pattern had found and that were deleted."""
    route, known = (
        build_route(topics=["stock", "${params.t}"], allow=["pay-*"]),
        CLUSTER - {"stock"},
    )
    view = build_view(route, "pay-e*,pay-us", known=known)
    assert view.topics == ("pay-eu", "pay-us", "stock")  # the operator's own may be created later
    with pytest.raises(UnknownTopic, match="pay-new"):
        build_view(route, "pay-*,pay-new", known=known)


@pytest.mark.parametrize("asked", ["hr-*", "x*", "__*", "*_offsets"])
def test_a_pattern_that_nothing_fits_is_unknown(asked: str):
    check_refused(404, "fits", build_route(allow=["orders", "pay-*", "*_offsets"]), asked)


def test_topics_of_kafka_itself_are_there_only_when_named():
    assert "__consumer_offsets" not in get_topics(build_route(allow=["*", "__*"]), "*")
    with pytest.raises(UnknownTopic):
        get_topics(build_route(allow=["*", "__*"]), "__consumer_offsets")
    named = build_route(allow=["__consumer_offsets"])
    assert (
        get_topics(named, "__consumer_offsets")
        == get_topics(named, "__*")
        == ("__consumer_offsets",)
    )


@pytest.mark.parametrize("asked", ["", "orders,", ",orders", "a" * 250, "*" * 250])
def test_a_path_that_names_nothing_is_unknown(asked: str):
    check_refused(404, "no topic", build_route(allow=["*"]), asked)


def test_topics_beside_the_chosen_ones_are_always_there():
    both = build_route(topics=["stock", "${params.t}"], allow=["pay-*"])
    assert get_topics(both, "pay-eu") == ("pay-eu", "stock")


def test_no_more_than_a_hundred_topics_are_read_at_once():
    allowed, many = build_route(allow=["*"]), [f"t{n}" for n in range(MAX_TOPICS + 1)]
    check_refused(400, "at most ask", allowed, ",".join(many))
    check_refused(400, "patterns", allowed, ",".join(f"{n}*" for n in range(MAX_PATTERNS + 1)))
    assert len(build_view(allowed, ",".join(many[1:])).topics) == MAX_TOPICS
    with pytest.raises(RequestError, match="101 topics fit"):
        build_view(allowed, "t*", known=many)


def test_the_same_topics_are_the_same_view_however_they_were_asked_for():
    allowed = build_route(allow=["*"])
    assert (
        build_view(allowed, "pay-us,pay-eu")
        == build_view(allowed, "pay-*")
        == build_view(allowed, "pay-eu,pay-us")
    )


# Filters and fields


def is_visible(view: View, key: bytes, value: bytes = b"{}") -> bool:
    return view.filters.matches(Record(TopicPartition("orders", 0), 0, 0, 0, key, value))


def test_conditions_of_a_route_are_filled_in():
    opened = build_route(
        filters=[{"value": {"/n": {"gte": "${query.min}"}}, "key": {"prefix": "${params.t}"}}]
    )
    some = build_view(opened, "orders", ("min", "10"))
    assert is_visible(some, b"orders-1", b'{"n": 10}')
    assert not is_visible(some, b"orders-1", b'{"n": 9}') and not is_visible(
        some, b"x", b'{"n": 10}'
    )
    check_refused(400, "value['/n'].gte number 'ten'", opened, "orders", ("min", "ten"))


def test_a_client_narrows_what_the_route_lets_through():
    opened = build_route(filters=[{"key": {"prefix": "a"}}], clientFilters=True)
    some = build_view(opened, "orders", ("filter", "key=in(ada,bob)"))
    assert (
        is_visible(some, b"ada") and not is_visible(some, b"bob") and not is_visible(some, b"amy")
    )
    assert is_visible(build_view(opened), b"amy")
    both = build_view(
        opened, "orders", ("filter", "key^=ad"), ("filter", '{"key": {"prefix": "ada"}}')
    )
    assert is_visible(both, b"ada") and not is_visible(both, b"ad")


def test_a_clients_text_is_no_template():
    opened = build_route(clientFilters=True)
    assert is_visible(build_view(opened, "orders", ("filter", "key=${params.t}")), b"${params.t}")


def test_a_route_that_leaves_no_choice_says_which_option_would():
    check_refused(403, "?filter= clientFilters", build_route(), "orders", ("filter", "key=a"))
    check_refused(
        403, "?fields= clientFields", build_route(clientFilters=True), "orders", ("fields", "/a")
    )
    assert build_view(build_route(), "orders", ("filter", ""), ("fields", "")) == build_view(
        build_route()
    )


def test_what_is_no_choice_is_refused_with_what_to_write():
    opened = build_route(clientFilters=True, clientFields=True)
    check_refused(400, "?filter= understood /amount>=10", opened, "orders", ("filter", "amount>10"))
    check_refused(400, "?fields= 'id' /region", opened, "orders", ("fields", "id"))
    check_refused(400, "?fields= 2 times", opened, "orders", ("fields", "/a"), ("fields", "/b"))


def test_fields_are_chosen_among_those_that_are_shown():
    opened = build_route(clientFields=True)
    assert build_view(opened).fields == ()
    assert build_view(opened, "orders", ("fields", "/b,/a")).fields == ("/a", "/b")
    shown = build_route(fields=["/id", "/customer/name", "/customer/age"], clientFields=True)
    assert build_view(shown).fields == ("/customer/age", "/customer/name", "/id")
    for asked, fields in (
        ("/id", ("/id",)),
        ("/id/x", ("/id/x",)),
        ("/customer", ("/customer/age", "/customer/name")),
        ("/customer/name/first,/id", ("/customer/name/first", "/id")),
    ):
        assert build_view(shown, "orders", ("fields", asked)).fields == fields
    for hidden in ("/secret", "/customers", "/id,/secret", "/i", "/"):
        check_refused(403, "not show", shown, "orders", ("fields", hidden))


def test_a_field_that_is_not_shown_cannot_be_asked_about():
    """A filter on it would tell its text, letter by letter."""
    shown = build_route(fields=["/id", "/customer/name"], clientFilters=True)
    for asked in ("/card^=4", "!/card", "/customer", '{"value": {"/id": 1, "/card": 4}}',
                  '[{"key": "a"}, {"value": {"/idx": "1"}}]'):  # fmt: skip
        check_refused(403, "not show", shown, "orders", ("filter", asked))
        check_refused(403, "not show", shown, "orders", ("filter", "key=a"), ("filter", asked))
    assert is_visible(build_view(shown, "orders", ("filter", "/id=1")), b"", b'{"id": 1}')
    own = build_route(fields=["/id"], filters=[{"value": {"/card": "4711"}}], clientFilters=True)
    assert is_visible(
        build_view(own, "orders", ("filter", "/id=1")), b"", b'{"id": 1, "card": 4711}'
    )


def test_what_a_client_chooses_is_in_the_digest_of_its_view():
    opened = build_route(clientFilters=True, clientFields=True)
    asked: list[Mapping[str, str]] = [
        {}, {"filter": "key=a"}, {"filter": "key=b"}, {"filter": "key^=a"}, {"filter": "!key"},
        {"filter": "key>1"}, {"filter": "key>=1"}, {"fields": "/a"}, {"fields": "/b"},
        {"fields": "/a", "filter": "key=a"},
    ]  # fmt: skip
    digests = [build_view(opened, "orders", *each.items()).digest for each in asked]
    assert len(set(digests)) == len(asked)
    again = build_view(opened, "orders", ("filter", '{"key": {"in": ["a"]}}'))
    assert again.digest == digests[1]


keys = st.sampled_from(["a", "ab", "b", ""])
chosen = st.sampled_from(["key=a", "key^=a", "key", "key=in(a,b)", "key>1", '[{"key":"b"}]'])
own = st.lists(
    st.sampled_from([{"key": "a"}, {"key": {"prefix": "a"}}, {"key": {"exists": True}}]), max_size=2
)


@given(own, st.lists(chosen, max_size=3), keys)
def test_no_choice_lets_through_what_its_route_does_not(filters, asked, key):
    opened = build_route(filters=filters, clientFilters=True)
    narrowed = build_view(opened, "orders", *(("filter", each) for each in asked))
    if is_visible(narrowed, key.encode()):
        assert is_visible(build_view(opened), key.encode())
        assert all(
            is_visible(
                build_view(build_route(clientFilters=True), "orders", ("filter", e)), key.encode()
            )
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


def build_guarded_route(path: str = "/e", **options: Any) -> Route:
    topics = [{"name": name} for name in sorted(CONFIGURED)]
    made = {
        "when": [{"path": path}],
        "guarded": {"jwt0": []},
        "with": {"topic": "orders", **options},
    }
    kafka = {"servers": ["a:1"], "topics": topics}
    return Settings.model_validate({"kafka": kafka, "guards": GUARDS, "routes": [made]}).routes[0]


def build_granted(*roles: str, **attributes: str) -> Granted:
    return Granted([Grant("jwt0", "ada", frozenset(roles), attributes)])


def test_claims_choose_topic_key_and_header():
    made = build_guarded_route(
        topic="${guarded['jwt0'].attributes.tenant}",
        filters=[
            {
                "key": "${guarded['jwt0'].identity}",
                "headers": {"t": "${guarded['jwt0'].attributes.tenant}"},
            }
        ],
    )
    seen = build_view(made, granted=build_granted(tenant="stock"))
    assert seen.topics == ("stock",)
    other = seen.filters.matches
    tp = TopicPartition("stock", 0)
    assert other(Record(tp, 0, 0, 0, b"ada", b"", (("t", b"stock"),)))
    assert not other(Record(tp, 0, 0, 0, b"eve", b"", (("t", b"stock"),)))
    assert not other(Record(tp, 0, 0, 0, b"ada", b"", (("t", b"orders"),)))


def test_a_claim_that_is_not_there_lets_nobody_in():
    made = build_guarded_route(filters=[{"key": "${guarded['jwt0'].attributes.tenant}"}])
    for granted in (build_granted(), NO_GRANTS, build_granted(tenant="")):
        with pytest.raises(RequestError) as raised:
            build_view(made, granted=granted)
        assert raised.value.status == 403


def test_a_field_is_shown_to_those_whose_role_it_is():
    email = {"field": "/email", "guarded": {"jwt0": ["support"]}}
    made = build_guarded_route(fields=["/id", email], clientFields=True, clientFilters=True)
    assert build_view(made, granted=build_granted()).fields == ("/id",)
    assert build_view(made, granted=build_granted("support")).fields == ("/email", "/id")
    asked = ("fields", "/email")
    with pytest.raises(RequestError, match="does not show"):
        build_view(made, "orders", asked, granted=build_granted())
    assert build_view(made, "orders", asked, granted=build_granted("support")).fields == ("/email",)
    with pytest.raises(RequestError, match="does not show"):
        build_view(made, "orders", ("filter", "/email=a"), granted=build_granted())


def test_who_is_shown_no_field_is_not_shown_them_all():
    made = build_guarded_route(fields=[{"field": "/email", "guarded": {"jwt0": ["support"]}}])
    with pytest.raises(RequestError) as raised:
        build_view(made, granted=build_granted())
    assert raised.value.status == 403


@pytest.mark.parametrize("text", ["key=ada", "/&", "{", "x" * 100_000])
@pytest.mark.parametrize(
    ("name", "option"), [("filter", "clientFilters"), ("fields", "clientFields")]
)
def test_who_may_not_choose_is_told_so_whatever_it_chose(name: str, option: str, text: str):
    """Filters were parsed before, and what was wrong with them was told."""
    with pytest.raises(RequestError) as raised:
        check_selection_allowed(build_route(), [(name, text)] * 5000)
    assert raised.value.status == 403 and option in str(raised.value)
    check_selection_allowed(build_route(), [(name, "")])
    check_selection_allowed(build_route(clientFilters=True, clientFields=True), [(name, text)])
