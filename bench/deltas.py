"""Tell what it would save to send only what changed of a key's value.

    python -m bench.deltas

The events are steps of orders: a step changes the status and the time. What changed is a JSON merge
patch (RFC 7396). Both are measured as they go on the wire, with the id of a topic of 12 partitions,
plain and against a dictionary of the events before them (RFC 9842). Values that stay the same but
are unlike all others, here a random note, are what only a patch saves.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.web.demo.sources import generate_orders
from gateway.wire import sse
from gateway.wire.zstd import CompressionDictionary

PARTITIONS = 12


@dataclass(frozen=True)
class Size:
    """sampled: events of the dictionary, before the measured ones. note_chars: of each order."""

    sampled: int = 400
    measured: int = 4000
    note_chars: tuple[int, ...] = (0, 50)


@dataclass(frozen=True)
class Sizes:
    """Average bytes of an event: plain, and as a frame that refers to a dictionary."""

    plain: float
    compressed: float


@dataclass(frozen=True)
class Comparison:
    """What events with whole values and with patches take."""

    note_chars: int
    whole: Sizes
    patch: Sizes

    @property
    def saved_share(self) -> float:
        """Return the share of the compressed bytes that patches would save."""
        return 1 - self.patch.compressed / self.whole.compressed


def measure(size: Size = Size()) -> list[Comparison]:
    return [_compare(size, note_chars) for note_chars in size.note_chars]


def build_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes one object of another."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before or before[name] != value:
            patch[name] = value
    return patch


def _compare(size: Size, note_chars: int) -> Comparison:
    steps = list(itertools.islice(_iter_steps(note_chars), size.sampled + size.measured))
    whole = [_encode_event(n, value) for n, (value, _) in enumerate(steps)]
    patches = [_encode_event(n, patch) for n, (_, patch) in enumerate(steps)]
    return Comparison(
        note_chars,
        _measure_events(whole[: size.sampled], whole[size.sampled :]),
        _measure_events(patches[: size.sampled], patches[size.sampled :]),
    )


def _measure_events(sampled: list[bytes], measured: list[bytes]) -> Sizes:
    dictionary = CompressionDictionary(b"".join(sampled))
    compressed = sum(len(dictionary.compress(event)) for event in measured)
    return Sizes(sum(map(len, measured)) / len(measured), compressed / len(measured))


def _iter_steps(note_chars: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each step of an order but its first, whole and as a patch of the one before."""
    rng, steps, orders = random.Random(1), itertools.count(), dict[str, dict[str, Any]]()
    for _, encoded in generate_orders(rng, clock=lambda: 1.7e9 + 0.4 * next(steps)):
        value = orjson.loads(encoded)
        before = orders.get(value["order"])
        value["note"] = (
            "".join(rng.choices("abcdefghij ", k=note_chars)) if before is None else before["note"]
        )
        if before is not None:
            yield value, build_patch(before, value)
        orders[value["order"]] = value


def _encode_event(n: int, value: Mapping[str, Any]) -> bytes:
    """Return an event with an id about as long as a token, of which each event changes a part."""
    offsets = [f"{(n + partition) // PARTITIONS:x}" for partition in range(PARTITIONS)]
    return sse.encode_data(orjson.dumps(value)) + sse.encode_id("-".join(offsets).encode())


def main() -> None:
    print("values             plain  dictionary")
    for each in measure():
        note = f", note of {each.note_chars}" if each.note_chars else ""
        for what, sizes in ((f"whole{note}", each.whole), (f"patch{note}", each.patch)):
            print(f"{what:18} {sizes.plain:5.0f}  {sizes.compressed:10.0f} bytes")
        print(f"with a dictionary, patches save {each.saved_share:.0%}")


if __name__ == "__main__":
    main()
