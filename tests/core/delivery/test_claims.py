from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery.claims import SLACK, Claim, Claims, Result
from gateway.core.log.record import TopicPartition

KEY, PLACE = b"k" * 16, TopicPartition("claims", 1)


def claim(owner: str, offset: int, until: float = 10.0) -> Claim:
    return Claim(owner, b"digest", offset, until)


def result(at: float = 0.0, offset: int = 7) -> Result:
    return Result(b"digest", PLACE, offset, at)


def test_the_first_claim_has_it_until_it_is_released():
    claims = Claims(10, 100.0)
    claims.claimed(KEY, claim("a", 3), now=0.0)
    claims.claimed(KEY, claim("b", 5), now=0.0)
    assert claims.first(KEY) == claim("a", 3)
    claims.released(KEY, "a")
    assert claims.first(KEY) == claim("b", 5)
    claims.released(KEY, "b")
    assert claims.first(KEY) is None


def test_a_claim_that_comes_again_is_the_one_it_was():
    claims = Claims(10, 100.0)
    claims.claimed(KEY, claim("a", 3), now=0.0)
    claims.claimed(KEY, claim("a", 9), now=0.0)
    assert claims.first(KEY) == claim("a", 3)


def test_what_is_done_needs_no_claim_whichever_is_heard_first():
    for order in ((0, 1), (1, 0)):
        claims = Claims(10, 100.0)
        for step in order:
            if step:
                claims.done(KEY, result())
            else:
                claims.claimed(KEY, claim("a", 3), now=0.0)
        assert claims.first(KEY) is None
        assert claims.result(KEY, now=1.0) == result()


def test_a_result_is_known_for_the_window():
    claims = Claims(10, 100.0)
    claims.done(KEY, result(at=0.0))
    assert claims.result(KEY, now=100.0) is not None
    assert claims.result(KEY, now=100.1) is None
    assert len(claims) == 0


def test_a_claim_outlives_the_result_that_it_may_have():
    claims = Claims(10, 100.0)
    claims.claimed(KEY, claim("a", 3, until=0.0), now=100.0 + SLACK - 1)
    assert claims.first(KEY) is not None
    claims.sweep(now=100.0 + SLACK + 1)
    assert claims.first(KEY) is None
    claims.claimed(KEY, claim("a", 3, until=0.0), now=100.0 + SLACK + 1)
    assert claims.first(KEY) is None


def test_the_latest_results_are_remembered():
    claims = Claims(2, 100.0)
    for name in (b"a", b"b", b"c"):
        claims.done(name, result())
    assert [claims.result(name, now=1.0) is None for name in (b"a", b"b", b"c")] == [
        True,
        False,
        False,
    ]


def test_a_sweep_forgets_what_is_older_than_the_window():
    claims = Claims(10, 100.0)
    claims.done(b"a", result(at=0.0))
    claims.done(b"b", result(at=50.0))
    claims.sweep(now=120.0)
    assert len(claims) == 1
    assert claims.result(b"b", now=120.0) is not None


@given(st.permutations(range(5)))
def test_all_who_hear_the_same_claims_agree_on_the_first(order: list[int]):
    """Partitions of claims are read in order; but a reader may begin anywhere, and hear again."""
    claims = Claims(10, 100.0)
    for offset in order:
        claims.claimed(KEY, claim(f"owner-{offset}", offset), now=0.0)
    first = claims.first(KEY)
    assert first is not None and first.offset == 0
