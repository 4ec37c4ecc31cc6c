"""Input topics that were deleted and recreated: their positions are of records that are gone.

Spark knows topics by their names, so it would pass over the records of the new topic up to the old
position. `topics.json` beside the checkpoint's own files has the id of each input's topic. Where it
is another one by now, the last offsets of that input are set to the new topic's begin before the
query starts; a batch that was interrupted then reads nothing of it. A query whose topic is
recreated while it runs is started again, before a batch of the new topic is written.

The new ids are written once the gap is told, so that a crash before that does all of it again. The
offsets as they were are kept in `recreated/`: the ledger knows batches by them.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline import topics
from gateway.pipeline.checkpoint.checkpoint import (
    RECREATED_DIRECTORY,
    Checkpoint,
    Offsets,
    Sources,
    flatten_offsets,
    format_offsets,
)
from gateway.pipeline.progress import counts
from gateway.pipeline.state.files import Files, discard_state
from gateway.pipeline.topics import TopicDescription, TopicMissing
from gateway.pipeline.unreadable.offsets import forget_ends, write_initial_offsets
from gateway.telemetry import catalog

from .gaps import InputGap

log = logging.getLogger(__name__)

TOPICS_FILE = "topics.json"
POSITIONS_FILE = "rewound.json"
"""Up to where topics that were recreated had been read, by input, with the ids of those topics."""
CHECK_INTERVAL_S = 5.0  # between two checks of a query from outside of its batches


class ReadTopic(NamedTuple):
    """A topic that is read, to be looked at by a worker of Spark.

    Attributes:
        client: librdkafka's properties of its cluster.
        topic: As it was when the query started.
    """

    client_config: Mapping[str, Any]
    topic: TopicDescription


class InputTopics:
    """The topics of a query's inputs, as they are when it starts.

    Attributes:
        topics: By input.
        read: The same, with their clusters.
    """

    def __init__(
        self,
        inputs: Mapping[str, tuple[Mapping[str, Any], str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask Kafka for the topics.

        Args:
            inputs: By name: librdkafka's properties of its cluster, and the topic's name.
            clock: Seconds of any monotonic clock.

        Raises:
            PipelineError: As of `topics.describe`.
        """
        self._admin_clients = {
            name: (topics.create_admin_client(client), topic)
            for name, (client, topic) in inputs.items()
        }
        self.topics = {
            name: topics.await_topic(*each) for name, each in self._request_topics().items()
        }
        self.read_topics = tuple(
            ReadTopic(inputs[name][0], each) for name, each in self.topics.items()
        )
        self._clock = clock
        self._futures: dict[str, tuple[Future[Any], str]] | None = None
        self._next_check_at = clock() + CHECK_INTERVAL_S

    def check(self) -> None:
        """Compare the topics with those that are there now.

        Raises:
            PipelineUnavailable: One was recreated, and the query must start again; or Kafka does
                not answer.
            PipelineError: Kafka refuses.
        """
        if found := self._find_recreated(self._request_topics()):
            raise _build_recreated_error(found)

    def have_changed(self) -> bool:
        """Return whether a topic is known to be recreated. Kafka is asked, and not waited for."""
        if self._futures is None and self._clock() >= self._next_check_at:
            self._futures = self._request_topics()
        if self._futures is None or not all(each.done() for each, _ in self._futures.values()):
            return False
        answers, self._futures = self._futures, None
        self._next_check_at = self._clock() + CHECK_INTERVAL_S
        try:
            return self._find_recreated(answers) is not None
        except PipelineError:
            return False  # the query itself meets what Kafka does not do

    def close(self) -> None:
        """Close the connections to Kafka; nothing can be asked any more."""
        # An AdminClient has no `close`: it ends with its last reference.
        self._admin_clients, self._futures = {}, None

    def _request_topics(self) -> dict[str, tuple[Future[Any], str]]:
        return {
            name: (topics.request_topic(admin, topic), topic)
            for name, (admin, topic) in self._admin_clients.items()
        }

    def _find_recreated(self, futures: Mapping[str, tuple[Future[Any], str]]) -> str | None:
        for name, answer in futures.items():
            try:
                found = topics.await_topic(*answer)
            except TopicMissing:
                continue  # it may be recreated yet
            if found.id != self.topics[name].id:
                return found.name
        return None


_admin_clients: dict[tuple[int, str], Any] = {}  # of this process, by the servers of a cluster


def check_topics(read_topics: Iterable[ReadTopic]) -> None:
    """Compare topics with those that are there now, in a worker of Spark.

    What was read before is of the topics that are named, as no id comes back. It takes 2.6 ms
    (median of 300 on two loaded cores).

    Raises:
        PipelineError: As of `InputTopics.check`.
    """
    asked = []
    for each in read_topics:
        place = os.getpid(), str(each.client_config.get("bootstrap.servers"))
        if place not in _admin_clients:
            _admin_clients[place] = topics.create_admin_client(each.client_config)
        asked.append((topics.request_topic(_admin_clients[place], each.topic.name), each.topic))
    for answer, topic in asked:
        try:
            found = topics.await_topic(answer, topic.name)
        except TopicMissing:
            continue  # another one has not been read
        if found.id != topic.id:
            raise _build_recreated_error(topic.name)


def _build_recreated_error(topic: str) -> PipelineUnavailable:
    return PipelineUnavailable(f"topic {topic} was recreated while the job read it")


@dataclass(frozen=True, slots=True)
class RewoundInputs:
    """What a query that is about to start has still to tell.

    Attributes:
        held: The files of its checkpoint.
        topics: By input.
        gaps: Of the inputs whose topics were recreated.
    """

    files: Files
    topics: Mapping[str, TopicDescription]
    gaps: Mapping[str, Sequence[InputGap]]

    def log_gaps(self, job: str) -> None:
        """Tell the gaps of a job that has no gap records, and remember the new topics."""
        for name, gaps in self.gaps.items():
            counts.increment_counter(catalog.PIPELINE_GAPS, len(gaps), job, self.topics[name].name)
            what = "job %s reads topic %s from its begin, as it was recreated; of the old one the "
            what += "records behind these offsets were not read, by partition: %s"
            starts = {each.partition: each.start for each in gaps}
            log.warning(what, job, self.topics[name].name, starts)
        store_topic_ids(self.files, self.topics)


def find_recreated(files: Files, topics: Mapping[str, TopicDescription]) -> list[str]:
    """Return the inputs whose topics were recreated since the query read them.

    Args:
        held: The files of the checkpoint.
        topics: By input.
    """
    known = _load_json(files, TOPICS_FILE)
    return [name for name, topic in topics.items() if known.get(name, topic.id) != topic.id]


def store_topic_ids(files: Files, topics: Mapping[str, TopicDescription]) -> None:
    """Write the ids of the topics that the batches from now on read."""
    ids = {name: topic.id for name, topic in topics.items()}
    if _load_json(files, TOPICS_FILE) != ids:
        files.write(TOPICS_FILE, json.dumps(ids, indent=1).encode())


def rewind_input(
    files: Files, checkpoint: Checkpoint, sources: Sources, input_name: str, topic: TopicDescription
) -> list[InputGap]:
    """Let an input be read from the begin of its topic.

    To be called before the query starts. It may be repeated until the new id is remembered.

    Args:
        held: The files of the checkpoint.
        checkpoint: The same, as it is read.
        sources: Which inputs the sources of the query are.
        name: The input's.
        topic: The new topic.

    Returns:
        A gap of each partition: it ends before it begins, as the new log does.
    """
    before = _store_positions(files, checkpoint, sources, input_name)
    begin = {(topic.name, each): 0 for each in range(topic.partitions)}
    done, planned = checkpoint.read_last_committed(), checkpoint.read_last_planned()
    if done is None:
        for number in range(len(checkpoint.read_initial_offsets())):
            if sources.directories[number] == input_name:
                write_initial_offsets(files, number, begin)
    for number in {each for each in (done, planned) if each is not None}:
        _rewind_batch(files, sources, input_name, number, begin)
    # An interrupted batch made it of the records that are gone.
    discard_state(files, 0 if done is None else done + 1)
    return [InputGap(*place, offset, 0) for place, offset in sorted(before.items())]


def _store_positions(
    files: Files, checkpoint: Checkpoint, sources: Sources, input_name: str
) -> Offsets:
    """Return up to where the topic that is gone was read.

    They are written before the offsets are changed. So they are the same where a start is killed,
    and where the topic is recreated once more before the gap was told.
    """
    noted, known = _load_json(files, POSITIONS_FILE), _load_json(files, TOPICS_FILE).get(input_name)
    if input_name not in noted or noted[input_name]["id"] != known:
        offsets = json.loads(format_offsets(_find_positions(checkpoint, sources, input_name)))
        noted[input_name] = {"id": known, "offsets": offsets}
        files.write(POSITIONS_FILE, json.dumps(noted).encode())
    return flatten_offsets(noted[input_name]["offsets"])


def _find_positions(checkpoint: Checkpoint, sources: Sources, input_name: str) -> Offsets:
    """Return where an input would be read on."""
    number = checkpoint.read_last_committed()
    found: Offsets = {}
    if number is None:
        for at, starts in enumerate(checkpoint.read_initial_offsets()):
            if sources.directories[at] == input_name:
                found |= starts
        return found
    found = _read_starts(checkpoint, sources, input_name, number)
    # A query that meets that the topic is missing goes on with batches that have no offsets of it.
    while number and not found:
        number -= 1
        try:
            found = _read_starts(checkpoint, sources, input_name, number)
        except PipelineError:  # the offsets are no longer kept
            break
    return found


def _read_starts(checkpoint: Checkpoint, sources: Sources, input_name: str, number: int) -> Offsets:
    """Return where the batch behind one starts."""
    found: Offsets = {}
    for source, offsets in zip(sources.lines, checkpoint.read_next_starts(number), strict=True):
        if source == input_name:
            found |= offsets
    return found


def _rewind_batch(
    files: Files, sources: Sources, input_name: str, number: int, start_offsets: Offsets
) -> None:
    """Let a batch end at the begin of an input's topic."""
    saved, text = f"{RECREATED_DIRECTORY}/{number}", files.read(f"offsets/{number}")
    if saved not in files.list_sizes():
        files.write(saved, text)
    lines = text.decode().splitlines()
    for at, source in enumerate(sources.lines):
        if source == input_name:
            forget_ends(files, number, at)
            lines[2 + at] = format_offsets(start_offsets)
    files.write(f"offsets/{number}", "\n".join(lines).encode())


def _load_json(files: Files, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(files.read(name))
    except FileNotFoundError:
        return {}
    return found
