from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from support.topic_reads import select_targets

from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.fetch_messages import FetchSession, FetchTarget, ForgottenPartition

ID, OTHER = UUID(int=1), UUID(int=2)


def tp(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


def build_wants(*partitions: int, offset: int = 0, topic_id: UUID | None = ID) -> dict:
    return {tp(partition): FetchTarget(offset, topic_id=topic_id) for partition in partitions}


def start_session(first: dict) -> FetchSession:
    session = select_targets(FetchSession(), first)
    session.take_changes()
    session.on_response(77)
    return session


def request_changes(session: FetchSession, new_wants: dict) -> tuple:
    return select_targets(session, new_wants).take_changes()


def test_the_first_fetch_names_everything_and_asks_for_a_session():
    session = FetchSession()
    assert request_changes(session, build_wants(0, 1)) == (build_wants(0, 1), [])
    assert (session.id, session.epoch) == (0, 0)


def test_a_fetch_in_a_session_names_what_changed():
    session = start_session(build_wants(0, 1))
    assert request_changes(session, build_wants(0, 1)) == ({}, [])
    assert (session.id, session.epoch) == (77, 1)
    moved = build_wants(0) | build_wants(1, offset=5)
    assert request_changes(session, moved) == (build_wants(1, offset=5), [])
    assert request_changes(session, moved) == ({}, [])


def test_a_partition_not_wanted_any_more_is_forgotten_once():
    session = start_session(build_wants(0, 1))
    assert request_changes(session, build_wants(0)) == ({}, [ForgottenPartition(tp(1), ID)])
    assert request_changes(session, build_wants(0)) == ({}, [])


def test_one_added_while_another_goes_is_noticed_at_equal_numbers():
    session = start_session(build_wants(0, 1))
    assert request_changes(session, build_wants(0, 2)) == (
        build_wants(2),
        [ForgottenPartition(tp(1), ID)],
    )


def test_a_recreated_topic_is_forgotten_under_its_old_id():
    session = start_session(build_wants(0))
    changed, forgotten = request_changes(session, build_wants(0, topic_id=OTHER))
    assert changed == build_wants(0, topic_id=OTHER)
    assert forgotten == [ForgottenPartition(tp(0), ID)]


def test_a_lost_session_is_closed_by_a_full_fetch():
    session = start_session(build_wants(0))
    session.reset()
    assert request_changes(session, build_wants(0)) == (build_wants(0), [])
    assert (session.id, session.epoch) == (77, 0)


def test_a_broker_without_room_for_sessions_is_asked_in_full_each_time():
    session = FetchSession()
    for _ in range(2):
        assert request_changes(session, build_wants(0)) == (build_wants(0), [])
        session.on_response(0)


def test_going_over_to_names_begins_a_new_session():
    session = start_session(build_wants(0))
    named = build_wants(0, topic_id=None)
    assert request_changes(session, named) == (named, [])
    assert not session.can_use_topic_ids
    assert session.epoch == 0


def test_the_epoch_wraps_to_one_because_zero_begins_a_session():
    session = start_session(build_wants(0))
    session.epoch = 2**31 - 1
    session.on_response(77)
    assert session.epoch == 1


def test_names_of_ids_are_kept_for_answers():
    session = start_session(build_wants(0))
    request_changes(
        session, {TopicPartition("other", 0): FetchTarget(0, topic_id=OTHER), **build_wants(0)}
    )
    assert session.topic_names == {ID: "orders", OTHER: "other"}


views = st.dictionaries(
    st.builds(tp, st.integers(0, 5)),
    st.builds(FetchTarget, st.integers(0, 3), topic_id=st.sampled_from([ID, OTHER])),
    min_size=1,
)


@given(st.lists(st.tuples(views, st.sampled_from(["answer", "lose", "no session"]))))
def test_the_broker_always_fetches_exactly_what_is_wanted(steps: list[tuple[dict, str]]):
    """A broker of KIP-227: keyed by id, forgets first, then takes what is named."""
    session = FetchSession()
    remembered: dict[tuple[UUID, int], FetchTarget] = {}
    for view, then in steps:
        sent, forgotten = request_changes(session, view)
        if session.epoch == 0:
            assert not forgotten
            remembered = {}
        for gone in forgotten:
            remembered.pop((gone.topic_id, gone.tp.partition), None)
        remembered |= {(want.topic_id, at.partition): want for at, want in sent.items()}
        assert remembered == {(want.topic_id, at.partition): want for at, want in view.items()}
        if then == "lose":
            session.reset()
        else:
            session.on_response(0 if then == "no session" else 5)
