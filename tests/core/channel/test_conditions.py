from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gateway.core.channel.conditions import Condition
from gateway.core.channel.exact_json import number_of


def bound(**bounds: str) -> Condition:
    made = {name: number_of(text) for name, text in bounds.items()}
    return Condition(bounds=tuple((name, at) for name, at in made.items() if at is not None))


def holds(condition: Condition, *found: bytes | None) -> bool:
    return condition.any_of(found)


def test_any_text_of_a_list_will_do():
    listed = Condition(one_of=("a", "b"))
    assert holds(listed, b"a") and holds(listed, b"x", b"b")
    assert not holds(listed, b"ab") and not holds(listed) and not holds(listed, None)


def test_a_prefix_is_of_the_bytes():
    assert holds(Condition(prefix="\u00e9"), "\u00e9t\u00e9".encode())
    assert holds(Condition(prefix="a"), b"a\xff\xfe")
    assert not holds(Condition(prefix="a"), b"ba")
    assert holds(Condition(prefix=""), b"") and not holds(Condition(prefix=""))


def test_presence_is_of_null_too():
    assert holds(Condition(exists=True), None) and not holds(Condition(exists=True))
    assert holds(Condition(exists=False)) and not holds(Condition(exists=False), None)


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
def test_a_range_is_of_numbers_exactly(
    bounds: dict[str, str], inside: list[bytes], outside: list[bytes]
):
    for text in inside:
        assert holds(bound(**bounds), text), text
    for text in outside:
        assert not holds(bound(**bounds), text), text


@pytest.mark.parametrize(
    "text", [b"", b"a", b"NaN", b"0x1", b" 1", b"1\n", b"\xff", b"\xd9\xa1", b"true"]
)
def test_text_that_is_no_number_is_in_no_range(text: bytes):
    assert not holds(bound(gte="-1e9"), text)
    assert not holds(bound(lt="1e9"), text)


def test_all_that_is_given_must_hold():
    both = Condition(one_of=("10", "20", "x"), prefix="1", bounds=(("gt", 5),))
    assert holds(both, b"10")
    assert not holds(both, b"20") and not holds(both, b"x") and not holds(both, b"15")
    assert not holds(both, b"x", b"20"), "one of them must do for all"


def test_equal_conditions_are_equal_values_with_the_same_text():
    """The text is what a token knows the view by."""
    for one, other in (
        (Condition(one_of=("b", "a", "b")), Condition(one_of=("a", "b"))),
        (bound(gt="10", lt="2e1"), bound(lt="20.0", gt="10")),
        (Condition(prefix="a", exists=True), Condition(prefix="a")),
        (bound(gt="0.10"), Condition(bounds=(("gt", Decimal("1e-1")),))),
    ):
        assert one == other and hash(one) == hash(other) and repr(one) == repr(other)
    assert bound(gt="1") != bound(gte="1")
    assert Condition(exists=True) != Condition(exists=False)


@pytest.mark.parametrize(
    "given", [{}, {"prefix": "a", "exists": False}, {"one_of": (), "exists": False}]
)
def test_what_says_nothing_or_contradicts_itself_is_refused(given: dict[str, Any]):
    with pytest.raises(ValueError, match=r"add|ask"):
        Condition(**given)
