"""Runs one seed: its schedule against the world, then the judgement."""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from support.received import ReceivedRecord
from support.stream_check import AckedRecord

from .actions.broker import BROKER_FAULTS
from .actions.effects import FaultAction, FaultNotPossible
from .actions.log import LOG_FAULTS
from .actions.network import NETWORK_FAULTS
from .actions.process import PROCESS_FAULTS
from .clients import ClientLog, FaultClient
from .judge import (
    GROUP,
    JOB,
    KAFKA,
    ClientFinding,
    Trouble,
    describe_lack,
    judge_client,
    judge_logs,
)
from .reactive import Delivery, count_again, judge_group
from .results import FaultResult, SeedResult, build_timelines, count_received
from .schedule import (
    BROKER_NETWORK,
    BROKERS,
    KINDS,
    KINDS_BY_NAME,
    FaultKind,
    PlannedFault,
    build_schedule,
)
from .spark_job import judge_rows
from .startup import WorldOptions, list_fronts, running_world
from .truth import Truth
from .world import World

ACTIONS: Mapping[str, FaultAction] = {
    **BROKER_FAULTS, **LOG_FAULTS, **NETWORK_FAULTS, **PROCESS_FAULTS,
}  # fmt: skip
MIN_EFFECT_S = 0.5  # that a fault stays in effect, however late its effect was seen
COMPLETE_TIMEOUT_S = 120.0
MAX_HISTORIES = 5
HISTORY_OFFSETS = 3  # on both sides of the one that is looked at
HISTORY_LINES = 12


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How seeds are run.

    Attributes:
        seconds: How long schedules are.
        clients: How many clients there are.
        kinds: What schedules are drawn from.
        has_job: Whether there is a Spark job, too.
        print_line: Where lines about faults go.
        log_directory: Where the logs of the gateways are kept if something was found; None for
            nowhere.
    """

    seconds: float = 60.0
    clients: int = 200
    kinds: Sequence[FaultKind] = KINDS
    has_job: bool = False
    print_line: Callable[[str], None] = print
    log_directory: Path | None = None


async def run_seed(seed: int, options: RunOptions) -> SeedResult:
    """Run a seed and return its result. What goes wrong with the bench itself is part of it."""
    result = SeedResult(seed, options.seconds, options.clients)
    schedule = build_schedule(seed, options.seconds, options.kinds)
    try:
        async with running_world(
            _build_world_options(seed, schedule, options), Random(seed)
        ) as world:
            result.front = world.front.NAME if world.front is not None else ""
            run = _Run(world, schedule, result, options)
            await run.play()
            await run.judge()
    except Exception as error:
        error.__notes__ = []  # the logs of the gateways, which are long
        result.error = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return result


def _build_world_options(
    seed: int, schedule: Sequence[PlannedFault], options: RunOptions
) -> WorldOptions:
    """Return what the faults of a schedule need. The proxies take turns by the seed."""
    kinds, fronts = {fault.kind.name for fault in schedule}, list_fronts()
    return WorldOptions(
        options.clients,
        has_small_disk="disk-full" in kinds,
        has_gateway_clock="clock-stepped" in kinds,
        has_broker_clock="broker-clock-stepped" in kinds,
        has_job=options.has_job,
        front=fronts[seed % len(fronts)] if fronts else None,
    )


class _Run:
    """One seed in its world."""

    def __init__(
        self,
        world: World,
        schedule: Sequence[PlannedFault],
        result: SeedResult,
        options: RunOptions,
    ) -> None:
        self._world = world
        self._schedule = schedule
        self._result = result
        self._options = options
        self._began_at = 0.0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def play(self) -> None:
        """Write, and let all faults of the schedule happen."""
        await self._world.start_clients(late=False)
        self._world.start_writers()
        await self._world.wait_until_job_writes()
        self._began_at = time.monotonic()
        await asyncio.gather(
            self._start_late_clients(), *(self._play_fault(fault) for fault in self._schedule)
        )
        await self._sleep_until(self._options.seconds)
        await self._world.heal()

    async def judge(self) -> None:
        """Wait until all have got all, and look what they have."""
        world = self._world
        await world.stop_writers()
        truth = await world.read_truth()
        self._print(f"all is healed; {len(world.clients)} clients have to get the rest")
        behind = await self._list_behind(truth)
        self._result.duration_s = round(self._get_time(), 1)
        calm_at = math.inf if behind else time.monotonic()
        if not behind:
            # Behind these comes nothing; before them would have come what comes twice.
            await world.write_last_records()
            truth = await world.read_truth()
            behind = await self._list_behind(truth)
        await asyncio.gather(*(client.stop() for client in world.clients))
        deliveries = await asyncio.to_thread(world.group.list_deliveries)
        rows = await world.read_rows()
        findings = self._list_lost_by_kafka(truth) + behind
        findings += [
            ClientFinding(KAFKA, "", "", Trouble.NOTHING_WRITTEN, tp, -1, "so nothing was tested")
            for tp in truth.list_unwritten()
        ]
        broker_faults = [
            (self._began_at + each.at, self._began_at + (each.healed_at or each.at))
            for each in self._result.faults
            if KINDS_BY_NAME[each.kind].claims & {BROKERS, BROKER_NETWORK}
        ]
        for client in world.clients:
            if client.is_closed:
                findings.append(_build_trouble(client, Trouble.GAVE_UP, client.describe_state()))
            findings += judge_client(client.log, truth, broker_faults)
        findings += judge_group(deliveries, truth, calm_at)
        findings += judge_logs(world.read_logs())
        if world.job is not None:
            findings += judge_rows(rows, truth)
        self._note_counts(deliveries, rows)
        self._note_findings(findings, truth)

    async def _list_behind(self, truth: Truth) -> list[ClientFinding]:
        """Wait until all have got all, and return who has not at the end."""
        world = self._world
        behind, group_lacks, job_lacks = await asyncio.gather(
            world.wait_until_complete(truth, COMPLETE_TIMEOUT_S),
            world.wait_until_group_has_all(truth, COMPLETE_TIMEOUT_S),
            world.wait_until_job_has_all(truth, COMPLETE_TIMEOUT_S),
        )
        findings = []
        for client in behind:
            text = f"lacks {describe_lack(client.log, truth)}; {client.describe_state()}"
            findings.append(_build_trouble(client, Trouble.STALLED, text))
        findings += [
            ClientFinding(who, "", "", Trouble.STALLED, None, -1, f"lacks {lacks}")
            for who, lacks in ((GROUP, group_lacks), (JOB, job_lacks))
            if lacks
        ]
        return findings

    def _note_counts(self, deliveries: Sequence[Delivery], rows: Sequence[AckedRecord]) -> None:
        """Note how much was written and what came of it."""
        world, result = self._world, self._result
        logs = [client.log for client in world.clients]
        result.records = dict(world.log.count_outcomes())
        if world.transactional is not None:
            result.records["transactions committed"] = world.transactional.committed_count
            result.records["transactions aborted"] = world.transactional.aborted_count
        result.counts = count_received(logs)
        result.counts["pushed to the back end"] = len(deliveries)
        result.counts["pushed to it again"] = count_again(deliveries)
        if world.job is not None:
            result.counts["rows of the Spark job"] = len(rows)
            result.counts["starts of the Spark job"] = world.job.start_count
        result.timelines = build_timelines(logs, deliveries, world.log, self._began_at)

    def _note_findings(self, findings: Sequence[ClientFinding], truth: Truth) -> None:
        """Note what was found, with the history of the first ones, and keep the logs."""
        result, directory = self._result, self._options.log_directory
        result.finding_kinds = dict(Counter(each.kind for each in findings))
        if findings and directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"seed-{result.seed}.log"
            path.write_text("\n".join(self._world.read_logs()))
        for number, finding in enumerate(findings):
            history = self._tell_history(finding, truth) if number < MAX_HISTORIES else []
            result.findings.append("\n".join([str(finding), *history]))

    async def _start_late_clients(self) -> None:
        await self._sleep_until(self._options.seconds / 2)
        await self._world.start_clients(late=True)

    async def _play_fault(self, fault: PlannedFault) -> None:
        await self._sleep_until(fault.at_s)
        claims = sorted(fault.kind.claims)
        for claim in claims:  # in the order of their names, so that nobody waits for one who waits
            await self._locks[claim].acquire()
        told = FaultResult(fault.kind.name, fault.at_s, self._get_time())
        self._result.faults.append(told)
        try:
            async with ACTIONS[fault.kind.name](self._world, fault) as effect:
                told.effect, told.effect_at, told.status = effect, self._get_time(), "effective"
                self._print(f"{fault.kind.name}: {effect}")
                await self._sleep_until(max(fault.until_s, self._get_time() + MIN_EFFECT_S))
            told.healed_at = self._get_time()
            self._print(f"{fault.kind.name}: healed")
        except FaultNotPossible as reason:
            told.status, told.effect = "not possible", str(reason)
            self._print(f"{fault.kind.name}: NOT POSSIBLE: {reason}")
        except Exception as failure:
            told.status, told.effect = "failed", f"{told.effect} {failure!r}".strip()
            self._print(f"{fault.kind.name}: FAILED: {failure!r}")
            self._print(traceback.format_exc())
        finally:
            told.healed_at = told.healed_at or self._get_time()
            for claim in claims:
                self._locks[claim].release()

    def _get_time(self) -> float:
        return round(time.monotonic() - self._began_at, 2)

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - (time.monotonic() - self._began_at)))

    def _print(self, line: str) -> None:
        self._options.print_line(f"seed {self._result.seed} {self._get_time():7.2f} s  {line}")

    def _list_lost_by_kafka(self, truth: Truth) -> list[ClientFinding]:
        """Return records that were acknowledged and that Kafka lost without a fault that may."""
        here = {(each.tp, each.offset): each.value for each in truth.read_records}
        lost = [
            each
            for each in self._world.log.entries
            if each.outcome == "acknowledged"
            and each.tp.topic in truth.whole_topics
            and each.offset is not None
            and here.get((each.tp, each.offset)) != each.value
        ]
        return [
            ClientFinding(
                KAFKA, each.writer, "", Trouble.LOST_BY_KAFKA, each.tp, each.offset or 0,
                f"{each.value!r:.80} was acknowledged at {each.offset}",
            )
            for each in lost
        ]  # fmt: skip

    def _tell_history(self, finding: ClientFinding, truth: Truth) -> list[str]:
        """Return what all sides say of the offset of a finding."""
        lines: list[str] = []
        world, began_at, tp = self._world, self._began_at, finding.tp
        log = world.clients[finding.client].log if finding.client >= 0 else None
        if tp is not None:
            near = range(finding.offset - HISTORY_OFFSETS, finding.offset + HISTORY_OFFSETS + 1)
            lines += [
                f"  writer {each.writer} {each.at - began_at:.2f} s: {each.outcome} "
                f"{tp.topic}-{tp.partition}@{each.offset} {each.value!r:.60}"
                for each in world.log.entries
                if each.tp == tp and each.offset in near
            ][:HISTORY_LINES]
            lines += [
                f"  Kafka: {tp.topic}-{tp.partition}@{each.offset} {each.key!r} {each.value!r:.60}"
                for each in truth.read_records
                if each.tp == tp and each.offset in near
            ]
            if log is not None:
                lines += _tell_client(log, finding, near, began_at)
        if log is not None:
            lines += [
                f"  client {each.opened_at - began_at:.2f} s: asks with {each.token or 'nothing'}"
                for each in log.connections[-4:]
            ]
            lines += [
                f"  client {at - began_at:.2f} s: {name} {data:.150}"
                for at, name, data in log.notes[-6:]
            ]
        topic = tp.topic if tp is not None else "ERROR"
        about = [line for line in world.read_logs() if topic in line or "Traceback" in line]
        return lines + [f"  {line:.200}" for line in about[-HISTORY_LINES:]]


def _build_trouble(client: FaultClient, kind: Trouble, text: str) -> ClientFinding:
    plan = client.log.plan
    return ClientFinding(plan.number, plan.view.name, plan.wire, kind, None, -1, text)


def _tell_client(log: ClientLog, finding: ClientFinding, near: range, began_at: float) -> list[str]:
    lines = []
    for item, at in zip(log.items, log.times, strict=True):
        if item.tp != finding.tp:
            continue
        if isinstance(item, ReceivedRecord):
            if item.offset in near:
                lines.append(f"  client {at - began_at:.2f} s: {item.offset} {item.value!r:.60}")
        else:
            lines.append(f"  client {at - began_at:.2f} s: {item}")
    return lines[: 2 * HISTORY_LINES]
