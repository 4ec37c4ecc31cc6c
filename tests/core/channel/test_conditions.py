from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gateway.core.channel.exact_json import parse_number
from gateway.core.channel.filters import Condition


def build_bounds(**bounds: str) -> Condition:
    made = {name: parse_number(text) for name, text in bounds.items()}
    return Condition(bounds=tuple((name, at) for name, at in made.items() if at is not None))


def matches_any(condition: Condition, *found: bytes | None) -> bool:
    return condition.matches_any(found)


def test_any_text_of_a_list_will_do():
    listed = Condition(one_of=("a", "b"))
    assert matches_any(listed, b"a") and matches_any(listed, b"x", b"b")
    assert (
        not matches_any(listed, b"ab") and not matches_any(listed) and not matches_any(listed, None)
    )


def test_a_prefix_is_of_the_bytes():
    assert matches_any(Condition(prefix="\u00e9"), "\u00e9t\u00e9".encode())
    assert matches_any(Condition(prefix="a"), b"a\xff\xfe")
    assert not matches_any(Condition(prefix="a"), b"ba")
    assert matches_any(Condition(prefix=""), b"") and not matches_any(Condition(prefix=""))


def test_presence_is_of_null_too():
    assert matches_any(Condition(exists=True), None) and not matches_any(Condition(exists=True))
    assert matches_any(Condition(exists=False)) and not matches_any(Condition(exists=False), None)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"gt": "10"}, [b"11", b"10.0001", b"1e2"], [b"10", b"10.0", b"9", b"-11"]),
        ({"gte": "10"}, [b"10", b"1e1", b"10.0"], [b"9.9999"]),
        ({"lt": "-0.5"}, [b"-0.51", b"-1e300"], [b"-0.5", b"-0", b"0"]),
        ({"gte": "1", "lt": "2"}, [b"1", b"1.999999999999999999999"], [b"0", b"2"]),
        ({"gt": "18446744073709551616"}, [b"18446744073709551617"], [b"18446744073709551616"]),
        ({"lte": "0.1"}, [b"0.1", b"0.10"], [b"0.1000000000000000055511151231257827"]),
        ({"lt": "1e400"}, [b"1e399", b"0"], [b"1e400", b"1e401"]),
    ],
)
def test_a_range_is_of_numbers_exactly(bounds, inside, outside):
    for text in inside:
        assert matches_any(build_bounds(**bounds), text), text
    for text in outside:
        assert not matches_any(build_bounds(**bounds), text), text


@pytest.mark.parametrize(
    "text", [b"", b"a", b"NaN", b"0x1", b" 1", b"1\n", b"\xff", b"\xd9\xa1", b"true"]
)
def test_text_that_is_no_number_is_in_no_range(text: bytes):
    assert not matches_any(build_bounds(gte="-1e9"), text)
    assert not matches_any(build_bounds(lt="1e9"), text)


def test_all_that_is_given_must_hold():
    both = Condition(one_of=("10", "20", "x"), prefix="1", bounds=(("gt", 5),))
    assert matches_any(both, b"10")
    assert (
        not matches_any(both, b"20")
        and not matches_any(both, b"x")
        and not matches_any(both, b"15")
    )
    assert not matches_any(both, b"x", b"20"), "one of them must do for all"


def test_equal_conditions_are_equal_values_with_the_same_text():
    """The text is what a token knows the view by."""
    for one, other in (
        (Condition(one_of=("b", "a", "b")), Condition(one_of=("a", "b"))),
        (build_bounds(gt="10", lt="2e1"), build_bounds(lt="20.0", gt="10")),
        (Condition(prefix="a", exists=True), Condition(prefix="a")),
        (build_bounds(gt="0.10"), Condition(bounds=(("gt", Decimal("1e-1")),))),
    ):
        assert one == other and hash(one) == hash(other) and repr(one) == repr(other)
    assert build_bounds(gt="1") != build_bounds(gte="1")
    assert Condition(exists=True) != Condition(exists=False)


@pytest.mark.parametrize(
    "given", [{}, {"prefix": "a", "exists": False}, {"one_of": (), "exists": False}]
)
def test_what_says_nothing_or_contradicts_itself_is_refused(given: dict[str, Any]):
    with pytest.raises(ValueError, match=r"add|ask"):
        Condition(**given)
