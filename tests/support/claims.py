"""Which record is whose: routes that look at claims, drawn at random, and what they show to whom.

A model for tests, written from the README; it shares no code with the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, TypeAlias

TOPICS = ("orders", "stock")
TENANTS, REGIONS, SUBJECTS, ROLES = "abc", ("eu", "us"), ("ada", "bob"), ("clerk", "support")
POINTERS = ("/n", "/tenant", "/owner", "/who/email", "/who/name")
FILTER_CLAIMS = {  # of a filter: the claims that it may name, and the texts
    "key": (("tenant", "shelf"), TENANTS),
    "headers.tenant": (("tenant",), TENANTS),
    "headers.region": (("region",), REGIONS),
    "value./tenant": (("tenant", "shelf"), TENANTS),
    "value./owner": (("sub",), SUBJECTS),
}

JsonObject: TypeAlias = dict[str, Any]
RecordLocation: TypeAlias = tuple[str, int, int]  # topic, partition, offset


class TokenClaims(NamedTuple):
    """What a token says; None: it does not say it. book: the topic that is its bearer's."""

    sub: str
    roles: frozenset[str]
    tenant: str | None
    shelf: str | None
    region: str | None
    book: str | None

    @classmethod
    def generate(cls, rng: Random, subject: str) -> TokenClaims:
        def choose_or_none(texts: Sequence[str]) -> str | None:
            return None if rng.random() < 0.08 else rng.choice(texts)

        roles = frozenset(role for role in ROLES if rng.random() < 0.7)
        return cls(
            subject,
            roles,
            choose_or_none(TENANTS),
            choose_or_none(TENANTS),
            choose_or_none(REGIONS),
            choose_or_none(TOPICS),
        )

    @property
    def jwt_claims(self) -> dict[str, Any]:
        """As members of a JWT."""
        return {**self._asdict(), "roles": None, "scope": " ".join(sorted(self.roles))}


class WrittenRecord(NamedTuple):
    """A record as it was written. asked: before it was sent, by the loop's clock."""

    location: RecordLocation
    key: str | None
    headers: Mapping[str, str]
    value: JsonObject
    sent_at: float

    @classmethod
    def generate(cls, rng: Random, number: int, padding: int) -> WrittenRecord:
        def choose(texts: Sequence[str]) -> str:
            return rng.choice(texts)

        headers = {"tenant": choose(TENANTS), "region": choose(REGIONS)}
        kept = {name: text for name, text in headers.items() if rng.random() < 0.9}
        who = {"email": f"{number}@example", "name": f"name {number}"}
        value = {
            "n": number,
            "tenant": choose(TENANTS),
            "owner": choose(SUBJECTS),
            "who": who,
            "pad": "x" * padding,
        }
        return cls(("", 0, 0), rng.choice([*TENANTS, None]), kept, value, 0.0)

    def get_field(self, target: str) -> str | None:
        part, _, name = target.partition(".")
        if part == "key":
            return self.key
        return self.headers.get(name) if part == "headers" else self.value[name[1:]]


class FilterValue(NamedTuple):
    """A text that a route's filter asks for: as it is, or that of a claim."""

    text: str
    is_claim: bool

    def resolve(self, claims: TokenClaims) -> str | None:
        return getattr(claims, self.text) if self.is_claim else self.text

    @property
    def config_text(self) -> str:
        return _build_template(self.text) if self.is_claim else self.text


class ClientChoice(NamedTuple):
    """What a client asks for by its query. fields: none for all."""

    key: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def query_params(self) -> list[tuple[str, str]]:
        key = [("filter", f'{{"key":"{self.key}"}}')] if self.key else []
        return key + ([("fields", ",".join(self.fields))] if self.fields else [])


class StreamTarget(NamedTuple):
    """What one client is shown. fields: none for all."""

    topic: str
    filters: tuple[tuple[tuple[str, str], ...], ...]
    key: str | None
    fields: tuple[str, ...]

    def accepts(self, entry: WrittenRecord) -> bool:
        chosen = self.key is None or entry.key == self.key
        own = not self.filters or any(
            all(entry.get_field(site) == text for site, text in each) for each in self.filters
        )
        return entry.location[0] == self.topic and chosen and own

    def project(self, entry: WrittenRecord) -> JsonObject:
        """The value, with what is shown of it."""
        if not self.fields:
            return entry.value
        shown: JsonObject = {}
        for pointer in self.fields:
            *outer, name = pointer[1:].split("/")
            of, into = entry.value, shown
            for each in outer:
                of, into = of[each], into.setdefault(each, {})
            into[name] = of[name]
        return shown


class ClaimRoute(NamedTuple):
    """A route. topic: None for that of the claim. fields: the roles that each is shown to."""

    path: str
    topic: str | None
    filters: tuple[tuple[tuple[str, FilterValue], ...], ...]
    fields: tuple[tuple[str, frozenset[str]], ...]
    roles: frozenset[str]

    @classmethod
    def generate(cls, rng: Random, path: str) -> ClaimRoute:
        filters = tuple(_generate_filter(rng) for _ in range(rng.choice([0, 1, 1, 1, 2])))
        fields = []
        if rng.random() < 0.6:
            for pointer in ("/n", *rng.sample(POINTERS[1:], rng.randint(0, 3))):
                to = [rng.choice(ROLES)] if rng.random() < 0.5 else []
                fields.append((pointer, frozenset(to)))
        roles = frozenset([rng.choice(ROLES)] if rng.random() < 0.2 else [])
        topic = rng.choice([*TOPICS, *TOPICS, None])
        return cls(path, topic, filters, tuple(fields), roles)

    @property
    def config(self) -> dict[str, Any]:
        """As a configuration has it."""
        fields = [
            {"field": pointer, "guarded": {"login": sorted(roles)}} if roles else pointer
            for pointer, roles in self.fields
        ]
        target = {
            "topic": self.topic or _build_template("book"), "format": "envelope",
            "clientFilters": True, "clientFields": True,
        }  # fmt: skip
        more = {"filters": [_build_filter_config(each) for each in self.filters], "fields": fields}
        return {
            "when": [{"path": self.path}],
            "guarded": {"login": sorted(self.roles)},
            "with": target | {name: given for name, given in more.items() if given},
        }

    def resolve_target(self, claims: TokenClaims, choice: ClientChoice) -> StreamTarget | None:
        """What it shows to these claims; None where it does not let them in."""
        topic = self.topic or claims.book
        filters = [
            [(site, wanted.resolve(claims)) for site, wanted in each] for each in self.filters
        ]
        shown = {pointer for pointer, roles in self.fields if roles <= claims.roles}
        hidden = not shown if self.fields else False
        if self.fields and not set(choice.fields) <= shown:
            hidden = True
        lacks = any(text is None for each in filters for _, text in each)
        if topic is None or hidden or lacks or not self.roles <= claims.roles:
            return None
        said = tuple(tuple((site, text or "") for site, text in each) for each in filters)
        return StreamTarget(topic, said, choice.key, tuple(sorted(choice.fields or shown)))


def _generate_filter(rng: Random) -> tuple[tuple[str, FilterValue], ...]:
    made = []
    for site in sorted(rng.sample(sorted(FILTER_CLAIMS), rng.choice([1, 1, 2]))):
        claims, texts = FILTER_CLAIMS[site]
        of_claim = rng.random() < 0.7
        made.append((site, FilterValue(rng.choice(claims if of_claim else texts), of_claim)))
    return tuple(made)


def _build_filter_config(conditions: tuple[tuple[str, FilterValue], ...]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for site, wanted in conditions:
        part, _, name = site.partition(".")
        if name:
            made.setdefault(part, {})[name] = wanted.config_text
        else:
            made[part] = wanted.config_text
    return made


def _build_template(claim: str) -> str:
    what = "identity" if claim == "sub" else f"attributes.{claim}"
    return f"${{guarded['login'].{what}}}"


# what was shown


class ReceivedRecord(NamedTuple):
    """A record as a client got it."""

    location: RecordLocation
    key: str | None
    headers: Mapping[str, str]
    value: JsonObject


class ViewSegment:
    """Of a stream, from one `begin` to the next.

    of_topic: the stretches before were of the same topic, and this one goes on from them.
    begun:    when its `begin` was seen; None before.
    """

    def __init__(
        self, target: StreamTarget, *, is_continuation: bool, starts_at_earliest: bool
    ) -> None:
        self.target = target
        self.is_continuation = is_continuation
        self.starts_at_earliest = starts_at_earliest
        self.begun_at: float | None = None
        self.received_locations: list[RecordLocation] = []


class WrittenLogs:
    """All that was written, by topic and partition, in the order of the offsets."""

    def __init__(self, partitions: int) -> None:
        self.logs: dict[tuple[str, int], list[WrittenRecord]] = {
            (topic, number): [] for topic in TOPICS for number in range(partitions)
        }

    def add_record(self, record: WrittenRecord) -> None:
        topic, partition, offset = record.location
        log = self.logs[topic, partition]
        assert offset == len(log), f"{record.location} is not the next one"
        log.append(record)

    def find_record(self, location: RecordLocation) -> WrittenRecord | None:
        """None while its write is not answered."""
        log = self.logs[location[:2]]
        return log[location[2]] if location[2] < len(log) else None

    def accept_record(self, segment: ViewSegment, received_record: ReceivedRecord) -> bool:
        """False if it is not known yet. AssertionError where it is not the client's."""
        entry = self.find_record(received_record.location)
        if entry is None:
            return False
        target = segment.target
        assert target.accepts(entry), f"{received_record} came to one who is shown {target}"
        assert (received_record.key, received_record.headers) == (entry.key, entry.headers), (
            f"{received_record} is {entry}"
        )
        assert received_record.value == target.project(entry), (
            f"{received_record} came to one who is shown {target}"
        )
        segment.received_locations.append(received_record.location)
        return True

    def find_missing(
        self, segments: Sequence[ViewSegment], *, is_over: bool
    ) -> RecordLocation | None:
        """The first record that is still to come; AssertionError for what cannot come any more.

        Where one stretch ends and the next begins is not told; but there has to be a place in
        each partition up to which all of the old view came, and from which on all of the new.
        over: nothing has to come any more.
        """
        runs: list[list[ViewSegment]] = []
        for stretch in segments:
            runs[-1].append(stretch) if stretch.is_continuation else runs.append([stretch])
        lacking = [
            self._find_missing_in_run(run, partition, is_over=is_over or run is not runs[-1])
            for run in runs
            for (topic, partition) in self.logs
            if topic == run[0].target.topic
        ]
        return next((place for place in lacking if place is not None), None)

    def _find_missing_in_run(
        self, run: Sequence[ViewSegment], partition: int, *, is_over: bool
    ) -> RecordLocation | None:
        topic = run[0].target.topic
        log = self.logs[topic, partition]
        got = [
            [at for t, p, at in each.received_locations if (t, p) == (topic, partition)]
            for each in run
        ]
        every = [offset for each in got for offset in each]
        assert every == sorted(set(every)), f"{topic} {partition}: not in order, or twice: {every}"
        start = 0 if run[0].starts_at_earliest else _find_latest_start(log, run[0])
        place = min([start, *every])
        for number, stretch in enumerate(run):
            later = [offset for each in got[number + 1 :] for offset in each]
            bound = _find_latest_start(log, run[number + 1]) if number + 1 < len(run) else len(log)
            came, bound = set(got[number]), min([bound, *later])
            place = next(
                (at for at in range(place, bound)
                 if at not in came and stretch.target.accepts(log[at])),
                bound,
            )  # fmt: skip
            last = max(came, default=-1)
            assert place > last, f"lost: {log[place]}; {topic} {partition} {last} came behind it"
        return None if is_over or place == len(log) else (topic, partition, place)


def _find_latest_start(log: Sequence[WrittenRecord], segment: ViewSegment) -> int:
    """Where it begins at the latest: with what was written after its `begin` was seen."""
    if segment.begun_at is None:
        return len(log)
    return next((n for n, each in enumerate(log) if each.sent_at > segment.begun_at), len(log))
