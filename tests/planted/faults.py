"""Sixty faults of the kind that a tired engineer makes, by which the tests are measured.

Each breaks something that README.md, docs/ or docs/threat-model.md promises, and passes ruff and
mypy. A change of the code that a fault names may need the same change here: `python -m planted
--check` says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A fault, and where it is put.

    Attributes:
        name: A short name.
        path: The file, from the root of the repository.
        old: What the fault replaces. The file has it exactly once.
        new: What replaces it.
        tests: The tests nearest to the file, the cheapest first.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


CORE = (
    PlantedFault(
        "divergence-missed-at-position",
        "gateway/core/log/partition_log.py",
        "if n == end or self._next_offsets[n] > position.offset:",
        "if n == end or self._next_offsets[n] >= position.offset:",
        ("tests/core/log",),
    ),
    PlantedFault(
        "stale-leader-accepted",
        "gateway/core/log/partition_reader.py",
        "if epoch < self.leader_epoch or (leader, epoch) == (self.leader, self.leader_epoch):",
        "if (leader, epoch) == (self.leader, self.leader_epoch):",
        ("tests/core/log", "tests/kafka/fetch"),
    ),
    PlantedFault(
        "narrowing-drops-inner-filter",
        "gateway/core/channel/filters.py",
        "within=self if other.within is None else self.narrow(other.within))",
        "within=self)",
        ("tests/core/channel", "tests/config/types", "tests/web/routing"),
    ),
    PlantedFault(
        "conflation-ignores-topic",
        "gateway/core/channel/conflation.py",
        "key = (entry.tp.topic, entry.key)",
        'key = ("", entry.key)',
        ("tests/core/channel",),
    ),
    PlantedFault(
        "dead-letter-without-probe",
        "gateway/core/delivery/delivery_queue.py",
        "if is_healthy and self.rules.has_dead_letters:",
        "if self.rules.has_dead_letters:",
        ("tests/core/delivery", "tests/sidecar/reactive"),
    ),
    PlantedFault(
        "release-ends-later-claim",
        "gateway/core/delivery/claims.py",
        "if claim is not None and claim.offset < offset:",
        "if claim is not None:",
        ("tests/core/delivery", "tests/sidecar/producer"),
    ),
    PlantedFault(
        "doubt-forgotten-on-refusal",
        "gateway/core/produce/outbox.py",
        "is_certain = code in NOT_APPENDED_ERRORS and self._in_doubt_since is None",
        "is_certain = code in NOT_APPENDED_ERRORS",
        ("tests/core/produce", "tests/kafka/produce"),
    ),
    PlantedFault(
        "checksum-of-signed-tokens-only",
        "gateway/core/token/token_parser.py",
        "if encode_digits(crc32(raw[:-CRC_WIDTH]), CRC_WIDTH) != raw[-CRC_WIDTH:]:",
        """\
checksum = encode_digits(crc32(raw[:-CRC_WIDTH]), CRC_WIDTH)
    if raw[:1] == SIGNED_VERSION and checksum != raw[-CRC_WIDTH:]:""",
        ("tests/core/token",),
    ),
    PlantedFault(
        "credit-spent-by-chunk",
        "gateway/core/client/shared_cursor.py",
        "self.credit -= cost",
        "self.credit -= min(cost, 1)",
        ("tests/core/client", "tests/hub/fanout", "tests/e2e/test_websocket_credit.py"),
    ),
    PlantedFault(
        "assigned-before-revoked",
        "gateway/core/group/consumer_member.py",
        "if added and not self._revoking:",
        "if added:",
        ("tests/core/group", "tests/kafka/group"),
    ),
)

HUB = (
    PlantedFault(
        "history-unlimited-for-late-partition",
        "gateway/hub/reads/token_verifier.py",
        "return max(start, oldest)",
        "return start",
        ("tests/hub/reads",),
    ),
    PlantedFault(
        "key-filter-of-document-skipped",
        "gateway/hub/reads/tables.py",
        "if latest is None or filters.matches(latest):",
        "if latest is None or filters.is_key_only or filters.matches(latest):",
        ("tests/hub/reads", "tests/e2e/test_document.py"),
    ),
    PlantedFault(
        "live-client-without-heartbeat",
        "gateway/hub/fanout/client.py",
        "self.sent_at = max(self.sent_at, self.audience.sent_at)",
        "self.sent_at = now",
        ("tests/hub/fanout",),
    ),
    PlantedFault(
        "private-readers-not-woken",
        "gateway/hub/reads/shared_tail.py",
        """\
        # Private readers follow the tail also where their channel shows nothing of this turn.
        self.tail.wake_readers()
""",
        "",
        ("tests/hub/fanout",),
    ),
    PlantedFault(
        "idempotency-scope-ignored",
        "gateway/hub/writes/writer.py",
        "IdempotencyKey(topic, scope, idempotency_key)",
        'IdempotencyKey(topic, "", idempotency_key)',
        ("tests/hub/writes", "tests/e2e/test_idempotency_scope.py"),
    ),
    PlantedFault(
        "gap-end-inclusive",
        "gateway/hub/wires/control_events.py",
        '"to": entry.next_offset,',
        '"to": entry.next_offset - 1,',
        ("tests/hub/wires",),
    ),
    PlantedFault(
        "cached-read-of-other-log",
        "gateway/hub/reads/backfill_reader.py",
        "if cached is None or cached.version != version:",
        "if cached is None:",
        ("tests/hub/reads",),
    ),
    PlantedFault(
        "key-read-in-old-partitions-only",
        "gateway/hub/reads/key_indexes.py",
        """\
            is_changed = tp.topic in self._changed_topics
            return partitions is None or is_changed or tp.partition in partitions
""",
        """\
            return partitions is None or tp.partition in partitions
""",
        ("tests/hub/reads",),
    ),
    PlantedFault(
        "slow-member-repeats-pieces",
        "gateway/hub/fanout/shared_catch_up.py",
        "source.resume(self._pieces[index - 1].position_after if index else self._start_position)",
        "source.resume(self._start_position)",
        ("tests/hub/fanout",),
    ),
)

KAFKA = (
    PlantedFault(
        "lone-abort-marker-ignored",
        "gateway/kafka/fetch/decoding.py",
        """\
        # It would otherwise be activated behind its own end, and hide the next transaction.
        self._activate_aborted(last)
""",
        "",
        ("tests/kafka/fetch",),
    ),
    PlantedFault(
        "stale-fetch-delivered",
        "gateway/kafka/fetch/fetcher.py",
        "            partition.in_flight.remove_partition(partition)\n",
        "            pass\n",
        ("tests/kafka/fetch",),
    ),
    PlantedFault(
        "aborted-records-in-bounded-read",
        "gateway/kafka/fetch/bounded_read.py",
        "aborted=fetched.aborted_transactions,  # with READ_UNCOMMITTED brokers name none",
        "aborted=(),",
        ("tests/kafka/fetch", "tests/sidecar/test_replay.py", "tests/sidecar/producer"),
    ),
    PlantedFault(
        "every-record-at-first-offset",
        "gateway/kafka/produce/producer.py",
        "lambda index: offset + index if offset >= 0 else -1",
        "lambda _: offset",
        ("tests/kafka/produce",),
    ),
    PlantedFault(
        "refused-transaction-left-open",
        "gateway/kafka/produce/transactional_producer.py",
        """\
                isinstance(error, PartitionFailed | AccessDenied)
                and await self._abort(producer)
""",
        """\
                isinstance(error, PartitionFailed | AccessDenied)
""",
        ("tests/kafka/produce",),
    ),
    PlantedFault(
        "null-key-written-empty",
        "gateway/kafka/produce/pending_records.py",
        "builder.append(index, record.timestamp, record.key, record.value, list(record.headers))",
        """\
key = record.key or b""
        builder.append(index, record.timestamp, key, record.value, list(record.headers))""",
        ("tests/kafka/produce", "tests/hub/writes"),
    ),
    PlantedFault(
        "moved-coordinator-kept",
        "gateway/kafka/group/group_offsets.py",
        "if errors & COORDINATOR_ERRORS:",
        "if errors >= COORDINATOR_ERRORS:",
        ("tests/kafka/group",),
    ),
    PlantedFault(
        "unstable-offsets-accepted",
        "gateway/kafka/protocol/group_messages.py",
        "require_stable: bool = True",
        "require_stable: bool = False",
        ("tests/kafka/protocol", "tests/kafka/group"),
    ),
    PlantedFault(
        "one-broker-believed",
        "gateway/kafka/client/metadata.py",
        "return sum(node >= 0 for node in nodes) >= min(2, len(self.brokers))",
        "return sum(node >= 0 for node in nodes) >= min(1, len(self.brokers))",
        ("tests/kafka/client",),
    ),
    PlantedFault(
        "token-lifetime-from-response",
        "gateway/kafka/client/security.py",
        "self._expires_at = began + self._lifetime",
        "self._expires_at = self.clock() + self._lifetime",
        ("tests/kafka/client",),
    ),
)

WEB = (
    PlantedFault(
        "forwarded-for-read-from-left",
        "gateway/web/http/asgi_middleware.py",
        "for text in reversed(addresses):",
        "for text in addresses:",
        ("tests/web/http",),
    ),
    PlantedFault(
        "upgrade-behind-unanswered-request",
        "gateway/web/http/transport.py",
        "if self.parser.should_upgrade() and (length != 0 or self._open_requests):",
        "if self.parser.should_upgrade() and length != 0:",
        ("tests/web/http", "tests/web/websocket"),
    ),
    PlantedFault(
        "origin-compared-by-prefix",
        "gateway/web/http/browsers.py",
        'return not origins or "*" in origins or origin in origins',
        'return not origins or "*" in origins or any(origin.startswith(each) for each in origins)',
        ("tests/web/websocket", "tests/web/routing", "tests/web/http"),
    ),
    PlantedFault(
        "drain-closes-socket-normally",
        "gateway/web/websocket/session.py",
        "SERVICE_RESTART if self.routes.hubs.draining else NORMAL_CLOSURE",
        "NORMAL_CLOSURE",
        ("tests/web/websocket", "tests/e2e/test_websocket_ends.py"),
    ),
    PlantedFault(
        "cached-token-outlives-its-key",
        "gateway/web/access/jwt.py",
        "if cached is not None and cached[0] is keys and",
        "if cached is not None and",
        ("tests/web/access",),
    ),
    PlantedFault(
        "one-role-is-enough",
        "gateway/web/access/admission.py",
        """\
    if missing_roles:
""",
        """\
    if missing_roles and len(missing_roles) == len(roles):
""",
        ("tests/web/access",),
    ),
    PlantedFault(
        "slot-of-identity-not-released",
        "gateway/web/http/limits.py",
        "self._keys = (*self._keys, *keys)",
        "self._keys = self._keys or tuple(keys)",
        ("tests/web/routing", "tests/e2e/test_limits_of_one.py"),
    ),
    PlantedFault(
        "reload-ends-unrelated-streams",
        "gateway/web/routing/open_streams.py",
        "if not changed_guards.isdisjoint(route.guarded) or not granted.has(route.guarded):",
        "if changed_guards or not granted.has(route.guarded):",
        ("tests/web/streams", "tests/e2e/test_reload.py"),
    ),
    PlantedFault(
        "reply-to-another-client",
        "gateway/web/exchange/reply.py",
        "if parsed_id is None or parsed_id[2] != hash_requester(match):",
        "if parsed_id is None:",
        ("tests/web/exchange", "tests/e2e/test_request_reply.py"),
    ),
    PlantedFault(
        "block-of-any-guard-ignored",
        "gateway/web/admin/blocklist.py",
        'for key in ((guard, grant.identity, ""), ("", grant.identity, "")):',
        'for key in ((guard, grant.identity, ""),):',
        ("tests/web/admin",),
    ),
    PlantedFault(
        "counters-added-twice",
        "gateway/web/admin/metrics.py",
        "if last is not None and current.started_at > last.started_at:",
        "if last is not None and current.started_at >= last.started_at:",
        ("tests/web/workers",),
    ),
)

SIDECAR = (
    PlantedFault(
        "unnamed-commit-failure-ignored",
        "gateway/sidecar/reactive/lanes.py",
        "failed = frozenset(selected) if exc.partitions is None else exc.partitions",
        "failed = exc.partitions or frozenset()",
        ("tests/sidecar/reactive",),
    ),
    PlantedFault(
        "revoked-records-committable",
        "gateway/sidecar/consumer/instance.py",
        "assigned = self.assignment - self._removed_since_poll",
        "assigned = self.assignment",
        ("tests/sidecar/consumer",),
    ),
    PlantedFault(
        "dead-letter-without-headers",
        "gateway/sidecar/reactive/dead_letters.py",
        'return [*self.headers, *((name, text.encode(errors="replace")) for name, text in fields)]',
        'return [(name, text.encode(errors="replace")) for name, text in fields]',
        ("tests/sidecar/reactive",),
    ),
    PlantedFault(
        "takeover-without-catch-up",
        "gateway/sidecar/producer/idempotency.py",
        """\
        await self._catch_up(key, attempt)
        if (
""",
        """\
        if (
""",
        ("tests/sidecar/producer",),
    ),
    PlantedFault(
        "instance-of-another-client",
        "gateway/sidecar/consumer/instances.py",
        "if instance is None or instance.identity != identity:",
        "if instance is None:",
        ("tests/sidecar/consumer", "tests/sidecar/test_authentication.py"),
    ),
    PlantedFault(
        "partial-write-reported-whole",
        "gateway/sidecar/producer/records.py",
        """\
        return 207
""",
        """\
        return 200
""",
        ("tests/sidecar/producer",),
    ),
    PlantedFault(
        "retry-delay-constant",
        "gateway/sidecar/ksqldb/push.py",
        """\
        backoff = Backoff(self.max, random.random, self.initial)
        body, id, refusals = b"[" + b",".join(rows) + b"]", str(uuid.uuid4()), 0
        while True:
""",
        """\
        body, id, refusals = b"[" + b",".join(rows) + b"]", str(uuid.uuid4()), 0
        while True:
            backoff = Backoff(self.max, random.random, self.initial)
""",
        ("tests/sidecar/ksqldb",),
    ),
    PlantedFault(
        "offsets-committed-too-far",
        "gateway/sidecar/dead_letter_retry/queue.py",
        "done = [each.queued.record for each in result.letters]",
        "done = [each.record for each in letters[: len(result.letters) + 1]]",
        ("tests/sidecar/test_dead_letter_retry.py",),
    ),
)

PIPELINE = (
    PlantedFault(
        "old-writers-not-fenced",
        "gateway/pipeline/exactly_once/driver.py",
        """\
        for writer in range(0 if old_plan is None else old_plan.writers):
            self._create_query_producer(str(writer))  # only to fence the old writer
""",
        "",
        ("tests/pipeline/exactly_once", "tests/pipeline/test_kills.py"),
    ),
    PlantedFault(
        "written-epoch-written-again",
        "gateway/pipeline/exactly_once/writer_plan.py",
        "if entry is None or entry.epoch < epoch:",
        "if entry is None or entry.epoch <= epoch:",
        ("tests/pipeline/exactly_once",),
    ),
    PlantedFault(
        "reported-gap-repeated",
        "gateway/pipeline/exactly_once/gaps.py",
        "start = max(offset, reported_ends.get((topic, partition), 0))",
        "start = offset",
        ("tests/pipeline/exactly_once",),
    ),
    PlantedFault(
        "session-ends-at-its-gap",
        "gateway/pipeline/jobs/pieces.py",
        "is_start[1:] |= start[1:] - reach[:-1] > rules.gap_us",
        "is_start[1:] |= start[1:] - reach[:-1] >= rules.gap_us",
        ("tests/pipeline/jobs",),
    ),
    PlantedFault(
        "watermark-a-thousandth",
        "gateway/pipeline/inputs/source.py",
        'f"{input.watermark * 1000:.0f} milliseconds"',
        'f"{input.watermark:.0f} milliseconds"',
        ("tests/pipeline/inputs", "tests/pipeline/jobs"),
    ),
    PlantedFault(
        "restored-checkpoint-keeps-id",
        "gateway/pipeline/checkpoint/maintenance.py",
        """\
        target.write("metadata", json.dumps({"id": query_id}).encode())
""",
        "",
        ("tests/pipeline/checkpoint", "tests/pipeline/test_put_back.py"),
    ),
)

CONFIG = (
    PlantedFault(
        "kilobytes-of-1024",
        "gateway/config/types/units.py",
        '"kB": Decimal(1000),',
        '"kB": Decimal(1024),',
        ("tests/config/types",),
    ),
    PlantedFault(
        "unknown-option-accepted",
        "gateway/config/types/section.py",
        'frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True',
        'frozen=True, extra="ignore", alias_generator=to_camel, hide_input_in_errors=True',
        ("tests/config",),
    ),
    PlantedFault(
        "any-exposed-value-allows",
        "gateway/config/sections/sidecar.py",
        "return is_served and not self.guarded and not self.exposed",
        'return is_served and not self.guarded and "exposed" not in self.model_fields_set',
        ("tests/config",),
    ),
)

FORMATS_AND_WIRE = (
    PlantedFault(
        "stored-block-not-flushed",
        "gateway/wire/gzip.py",
        'return b"".join(pieces) + FLUSH_BLOCK if data else b""',
        'return b"".join(pieces)',
        ("tests/wire", "tests/hub/wires"),
    ),
    PlantedFault(
        "size-limit-of-each-fragment",
        "gateway/wire/message_reader.py",
        "size_so_far = 0 if message is None else max(message.size, message.received_bytes)",
        "size_so_far = 0",
        ("tests/wire", "tests/web/websocket"),
    ),
    PlantedFault(
        "infinity-written-as-nan",
        "gateway/formats/avro/types.py",
        'return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"',
        'return "NaN" if value - value != 0 else "Infinity" if value > 0 else "-Infinity"',
        ("tests/formats",),
    ),
)

FAULTS = CORE + HUB + KAFKA + WEB + SIDECAR + PIPELINE + CONFIG + FORMATS_AND_WIRE
