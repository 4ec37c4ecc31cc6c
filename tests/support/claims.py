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
SITES = {  # of a filter: the claims that it may name, and the texts
    "key": (("tenant", "shelf"), TENANTS),
    "headers.tenant": (("tenant",), TENANTS),
    "headers.region": (("region",), REGIONS),
    "value./tenant": (("tenant", "shelf"), TENANTS),
    "value./owner": (("sub",), SUBJECTS),
}

Value: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str, int, int]  # topic, partition, offset


class Claims(NamedTuple):
    """What a token says; None: it does not say it. book: the topic that is its bearer's."""

    sub: str
    roles: frozenset[str]
    tenant: str | None
    shelf: str | None
    region: str | None
    book: str | None

    @classmethod
    def drawn(cls, draw: Random, sub: str) -> Claims:
        def one(texts: Sequence[str]) -> str | None:
            return None if draw.random() < 0.08 else draw.choice(texts)

        roles = frozenset(role for role in ROLES if draw.random() < 0.7)
        return cls(sub, roles, one(TENANTS), one(TENANTS), one(REGIONS), one(TOPICS))

    @property
    def told(self) -> dict[str, Any]:
        """As members of a JWT."""
        return {**self._asdict(), "roles": None, "scope": " ".join(sorted(self.roles))}


class Entry(NamedTuple):
    """A record as it was written. asked: before it was sent, by the loop's clock."""

    place: Place
    key: str | None
    headers: Mapping[str, str]
    value: Value
    asked: float

    @classmethod
    def drawn(cls, draw: Random, n: int, pad: int) -> Entry:
        def one(texts: Sequence[str]) -> str:
            return draw.choice(texts)

        headers = {"tenant": one(TENANTS), "region": one(REGIONS)}
        kept = {name: text for name, text in headers.items() if draw.random() < 0.9}
        who = {"email": f"{n}@example", "name": f"name {n}"}
        value = {
            "n": n, "tenant": one(TENANTS), "owner": one(SUBJECTS), "who": who, "pad": "x" * pad
        }  # fmt: skip
        return cls(("", 0, 0), draw.choice([*TENANTS, None]), kept, value, 0.0)

    def at(self, site: str) -> str | None:
        part, _, name = site.partition(".")
        if part == "key":
            return self.key
        return self.headers.get(name) if part == "headers" else self.value[name[1:]]


class Wanted(NamedTuple):
    """A text that a route's filter asks for: as it is, or that of a claim."""

    text: str
    of_claim: bool

    def of(self, claims: Claims) -> str | None:
        return getattr(claims, self.text) if self.of_claim else self.text

    @property
    def written(self) -> str:
        return _template(self.text) if self.of_claim else self.text


class Choice(NamedTuple):
    """What a client asks for by its query. fields: none for all."""

    key: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def query(self) -> list[tuple[str, str]]:
        key = [("filter", f'{{"key":"{self.key}"}}')] if self.key else []
        return key + ([("fields", ",".join(self.fields))] if self.fields else [])


class Target(NamedTuple):
    """What one client is shown. fields: none for all."""

    topic: str
    filters: tuple[tuple[tuple[str, str], ...], ...]
    key: str | None
    fields: tuple[str, ...]

    def lets(self, entry: Entry) -> bool:
        chosen = self.key is None or entry.key == self.key
        own = not self.filters or any(
            all(entry.at(site) == text for site, text in each) for each in self.filters
        )
        return entry.place[0] == self.topic and chosen and own

    def shows(self, entry: Entry) -> Value:
        """The value, with what is shown of it."""
        if not self.fields:
            return entry.value
        shown: Value = {}
        for pointer in self.fields:
            *outer, name = pointer[1:].split("/")
            of, into = entry.value, shown
            for each in outer:
                of, into = of[each], into.setdefault(each, {})
            into[name] = of[name]
        return shown


class Way(NamedTuple):
    """A route. topic: None for that of the claim. fields: the roles that each is shown to."""

    path: str
    topic: str | None
    filters: tuple[tuple[tuple[str, Wanted], ...], ...]
    fields: tuple[tuple[str, frozenset[str]], ...]
    roles: frozenset[str]

    @classmethod
    def drawn(cls, draw: Random, path: str) -> Way:
        filters = tuple(_filter(draw) for _ in range(draw.choice([0, 1, 1, 1, 2])))
        fields = []
        if draw.random() < 0.6:
            for pointer in ("/n", *draw.sample(POINTERS[1:], draw.randint(0, 3))):
                to = [draw.choice(ROLES)] if draw.random() < 0.5 else []
                fields.append((pointer, frozenset(to)))
        roles = frozenset([draw.choice(ROLES)] if draw.random() < 0.2 else [])
        topic = draw.choice([*TOPICS, *TOPICS, None])
        return cls(path, topic, filters, tuple(fields), roles)

    @property
    def written(self) -> dict[str, Any]:
        """As a configuration has it."""
        fields = [
            {"field": pointer, "guarded": {"login": sorted(roles)}} if roles else pointer
            for pointer, roles in self.fields
        ]
        target = {
            "topic": self.topic or _template("book"), "format": "envelope",
            "clientFilters": True, "clientFields": True,
        }  # fmt: skip
        more = {"filters": [_written(each) for each in self.filters], "fields": fields}
        return {
            "when": [{"path": self.path}],
            "guarded": {"login": sorted(self.roles)},
            "with": target | {name: given for name, given in more.items() if given},
        }

    def target(self, claims: Claims, choice: Choice) -> Target | None:
        """What it shows to these claims; None where it does not let them in."""
        topic = self.topic or claims.book
        filters = [[(site, wanted.of(claims)) for site, wanted in each] for each in self.filters]
        shown = {pointer for pointer, roles in self.fields if roles <= claims.roles}
        hidden = not shown if self.fields else False
        if self.fields and not set(choice.fields) <= shown:
            hidden = True
        lacks = any(text is None for each in filters for _, text in each)
        if topic is None or hidden or lacks or not self.roles <= claims.roles:
            return None
        said = tuple(tuple((site, text or "") for site, text in each) for each in filters)
        return Target(topic, said, choice.key, tuple(sorted(choice.fields or shown)))


def _filter(draw: Random) -> tuple[tuple[str, Wanted], ...]:
    made = []
    for site in sorted(draw.sample(sorted(SITES), draw.choice([1, 1, 2]))):
        claims, texts = SITES[site]
        of_claim = draw.random() < 0.7
        made.append((site, Wanted(draw.choice(claims if of_claim else texts), of_claim)))
    return tuple(made)


def _written(each: tuple[tuple[str, Wanted], ...]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for site, wanted in each:
        part, _, name = site.partition(".")
        if name:
            made.setdefault(part, {})[name] = wanted.written
        else:
            made[part] = wanted.written
    return made


def _template(claim: str) -> str:
    what = "identity" if claim == "sub" else f"attributes.{claim}"
    return f"${{guarded['login'].{what}}}"


# what was shown


class Told(NamedTuple):
    """A record as a client got it."""

    place: Place
    key: str | None
    headers: Mapping[str, str]
    value: Value


class Stretch:
    """Of a stream, from one `begin` to the next.

    of_topic: the stretches before were of the same topic, and this one goes on from them.
    begun:    when its `begin` was seen; None before.
    """

    def __init__(self, target: Target, *, goes_on: bool, from_earliest: bool) -> None:
        self.target = target
        self.goes_on = goes_on
        self.from_earliest = from_earliest
        self.begun: float | None = None
        self.got: list[Place] = []


class Writings:
    """All that was written, by topic and partition, in the order of the offsets."""

    def __init__(self, partitions: int) -> None:
        self.logs: dict[tuple[str, int], list[Entry]] = {
            (topic, number): [] for topic in TOPICS for number in range(partitions)
        }

    def add(self, entry: Entry) -> None:
        topic, partition, offset = entry.place
        log = self.logs[topic, partition]
        assert offset == len(log), f"{entry.place} is not the next one"
        log.append(entry)

    def find(self, place: Place) -> Entry | None:
        """None while its write is not answered."""
        log = self.logs[place[:2]]
        return log[place[2]] if place[2] < len(log) else None

    def take(self, stretch: Stretch, told: Told) -> bool:
        """False if it is not known yet. AssertionError where it is not the client's."""
        entry = self.find(told.place)
        if entry is None:
            return False
        target = stretch.target
        assert target.lets(entry), f"{told} came to one who is shown {target}"
        assert (told.key, told.headers) == (entry.key, entry.headers), f"{told} is {entry}"
        assert told.value == target.shows(entry), f"{told} came to one who is shown {target}"
        stretch.got.append(told.place)
        return True

    def missing(self, stretches: Sequence[Stretch], *, over: bool) -> Place | None:
        """The first record that is still to come; AssertionError for what cannot come any more.

        Where one stretch ends and the next begins is not told; but there has to be a place in
        each partition up to which all of the old view came, and from which on all of the new.
        over: nothing has to come any more.
        """
        runs: list[list[Stretch]] = []
        for stretch in stretches:
            runs[-1].append(stretch) if stretch.goes_on else runs.append([stretch])
        lacking = [
            self._missing(run, partition, over=over or run is not runs[-1])
            for run in runs
            for (topic, partition) in self.logs
            if topic == run[0].target.topic
        ]
        return next((place for place in lacking if place is not None), None)

    def _missing(self, run: Sequence[Stretch], partition: int, *, over: bool) -> Place | None:
        topic = run[0].target.topic
        log = self.logs[topic, partition]
        got = [[at for t, p, at in each.got if (t, p) == (topic, partition)] for each in run]
        every = [offset for each in got for offset in each]
        assert every == sorted(set(every)), f"{topic} {partition}: not in order, or twice: {every}"
        start = 0 if run[0].from_earliest else _latest(log, run[0])
        place = min([start, *every])
        for number, stretch in enumerate(run):
            later = [offset for each in got[number + 1 :] for offset in each]
            bound = _latest(log, run[number + 1]) if number + 1 < len(run) else len(log)
            came, bound = set(got[number]), min([bound, *later])
            place = next(
                (at for at in range(place, bound)
                 if at not in came and stretch.target.lets(log[at])),
                bound,
            )  # fmt: skip
            last = max(came, default=-1)
            assert place > last, f"lost: {log[place]}; {topic} {partition} {last} came behind it"
        return None if over or place == len(log) else (topic, partition, place)


def _latest(log: Sequence[Entry], stretch: Stretch) -> int:
    """Where it begins at the latest: with what was written after its `begin` was seen."""
    if stretch.begun is None:
        return len(log)
    return next((n for n, each in enumerate(log) if each.asked > stretch.begun), len(log))
