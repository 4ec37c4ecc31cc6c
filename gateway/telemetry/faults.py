"""The catalogue of faults: how each one shows, where to look, and what to do.

`gateway doctor` takes the texts of its causes from here. `make docs` writes the alerts of
`deploy/prometheus/alerts.yaml`, the page `docs/runbooks.md`, and the table of causes in
`docs/troubleshooting.md`. So a text is written once, and all of them say the same.

Root causes stand before those that they explain, such as brokers before slow clients: the doctor
reports causes in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Alert(NamedTuple):
    """A Prometheus alert. Its texts are templates of Prometheus.

    Attributes:
        expression: PromQL over metrics of `catalog`, and series of `recording.yaml`.
        hold: How long the expression has to hold, such as `5m`; empty for an alert at once.
    """

    name: str
    severity: Literal["critical", "warning"]
    expression: str
    summary: str
    description: str
    hold: str = ""


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        title: What is wrong, without a capital and a dot, as the doctor says it.
        action: What to do. If there is a rule, a terminal shows it, too. `{causes}` is the table
            of all `causes`.
        look: Where to look first, likewise.
        rule: The name by which the doctor reports it; empty if only an alert watches for it.
        settings: What the doctor names as the settings or commands to change.
        causes: The values of the label `cause` that partitions have which this keeps from being
            read.
        meaning: What it means beyond the title, in Markdown.
        details: Tables and links behind the action, in Markdown.
    """

    title: str
    action: str
    look: str = ""
    rule: str = ""
    settings: Sequence[str] = ()
    causes: Sequence[str] = ()
    meaning: str = ""
    details: str = ""
    alert: Alert | None = None

    @property
    def advice(self) -> str:
        return f"{self.look} {self.action}".strip()


_EXPIRES_IN = "min by (job, instance) (gateway_certificate_expiry_timestamp_seconds) - time() < "
_VALID_FOR = "It is valid for another {{ $value | humanizeDuration }}."

FAULTS: Sequence[Fault] = (
    # Processes that are not there.
    Fault(
        "the gateway does not answer",
        "If they answer, look at the network from Prometheus, and at TLS and guards of the path of "
        "metrics. If not, the last lines of the log say why it ended.",
        look="Ask `gateway health`, and `/health/live` by `curl`.",
        alert=Alert(
            "GatewayDown",
            "critical",
            'up{job=~"gateway.*"} == 0',
            "{{ $labels.instance }} of {{ $labels.job }} does not answer",
            "up is {{ $value }}: Prometheus cannot scrape it.",
            hold="1m",
        ),
    ),
    Fault(
        "workers do not answer",
        "A worker that hangs is not replaced: end it by SIGKILL, and the supervisor starts another "
        "one. Its clients resume elsewhere.",
        look="If a worker cannot be started, the log says why.",
        rule="worker-missing",
        settings=("listen.workers", "the host"),
        alert=Alert(
            "GatewayWorkerMissing",
            "critical",
            "max by (job, instance) (gateway_workers_missing) > 0",
            "Workers of {{ $labels.instance }} do not answer",
            "{{ $value }} workers are missing from the scrapes.",
            hold="1m",
        ),
    ),
    Fault(
        "workers crash and are started again",
        "Status -9 is the kernel, mostly out of memory: lower `memory`, or raise the limit of the "
        "container. Report others. Clients resume without loss, but all at once.",
        look="The log has `ended with status`.",
        rule="worker-restarts",
        settings=("the gateway's log", "the memory of the host"),
        alert=Alert(
            "GatewayWorkerRestarted",
            "warning",
            "sum by (job, instance, worker) (increase(gateway_worker_restarts_total[10m])) > 0",
            "Worker {{ $labels.worker }} of {{ $labels.instance }} crashed",
            "It was started again {{ $value | humanize }} times in 10 minutes.",
        ),
    ),
    # Faults of Kafka.
    Fault(
        "a broker does not speak the gateway's versions",
        "Use Kafka 2.3 or later, or name other brokers.",
        rule="broker-old",
        settings=("kafka.servers", "the brokers"),
    ),
    Fault(
        "brokers do not answer",
        "If all gateways have this, look at Kafka, otherwise at the network and credentials of "
        "this one. Streams stay open, and go on without loss.",
        look="`gateway check --cluster` tries each broker by name, port, TLS and login.",
        rule="broker-away",
        settings=("kafka.servers", "the brokers", "the network"),
        causes=("connection", "timeout"),
        alert=Alert(
            "GatewayKafkaUnreachable",
            "critical",
            "min by (job, instance, cluster) (gateway_kafka_reachable) == 0",
            "{{ $labels.instance }} reaches no broker {{ $labels.cluster }}",
            "gateway_kafka_reachable is {{ $value }}. Clients get no new records.",
            hold="1m",
        ),
    ),
    Fault(
        "brokers refuse the gateway",
        "Grant `READ` and `DESCRIBE` on the topics, or correct the credentials.",
        look="`gateway check --cluster` says which are missing.",
        rule="broker-refuses",
        settings=("kafka.security", "ACLs of the gateway's principal"),
        causes=("access-denied", "authentication"),
    ),
    Fault(
        "partitions have no leader",
        "Start the brokers that have their replicas. Other partitions are served meanwhile.",
        look="`gateway topics TOPIC` shows replicas.",
        rule="partition-leaderless",
        settings=("the brokers", "replication of the topics", "unclean.leader.election.enable"),
        causes=("no-leader",),
        details="An unclean election loses records: clients get a [gap](resume-and-gaps.md#gaps).",
        alert=Alert(
            "GatewayPartitionLeaderless",
            "critical",
            "sum by (job, instance, cluster, topic, partition) "
            '(gateway_partition_state{state="leaderless"}) > 0',
            "{{ $labels.topic }}-{{ $labels.partition }} has no leader",
            "{{ $value }} workers of {{ $labels.instance }} wait for one.",
            hold="1m",
        ),
    ),
    Fault(
        "a topic does not exist",
        "Create the topic, or correct its name.",
        look="`gateway topics` lists those that there are.",
        rule="topic-missing",
        settings=("kafka.topics", "routes[].with.topic"),
        causes=("unknown-topic",),
    ),
    Fault(
        "brokers answer with what cannot be read",
        "Repair the disk. After some tries the gateway skips a damaged batch, and sends a gap.",
        look="The brokers' logs say which file it is.",
        rule="partition-damaged",
        settings=("the brokers' disks",),
        causes=("corrupt", "storage", "unexpected"),
    ),
    Fault(
        "the schema registry does not answer",
        "Start it, or correct its URL. Records of schemas that are not known yet wait for it.",
        look="`gateway check --cluster` asks it.",
        rule="registry-away",
        settings=("catalogs", "the registry"),
        causes=("schema-registry",),
    ),
    Fault(
        "partitions cannot be read",
        "{causes}",
        look="`gateway_partition_recovering` has the cause:",
        details="`not-leader` passes; if it lasts, the gateway cannot reach the new leader.",
        alert=Alert(
            "GatewayPartitionNotReady",
            "warning",
            "(min by (job, instance, cluster, topic, partition) (gateway_partition_ready) == 0)"
            " unless (sum by (job, instance, cluster, topic, partition) "
            '(gateway_partition_state{state="leaderless"}) > 0)'
            " unless on (job, instance, cluster) (gateway_kafka_reachable == 0)",
            "{{ $labels.topic }}-{{ $labels.partition }} cannot be read",
            "gateway_partition_ready is {{ $value }} on {{ $labels.instance }}.",
            hold="2m",
        ),
    ),
    # Nobody new is admitted.
    Fault(
        "a guard cannot decide about clients",
        "Start the issuer of tokens, or the application that is asked, or correct its URL. New "
        "clients get 503 meanwhile; streams go on.",
        look="`warnings` of `/health/ready` say why.",
        rule="guard-away",
        settings=("guards", "the issuer of tokens, or the application that is asked"),
        alert=Alert(
            "GatewayGuardNotReady",
            "critical",
            "min by (job, instance, guard) (gateway_guard_ready) == 0",
            "Guard {{ $labels.guard }} of {{ $labels.instance }} cannot decide",
            "gateway_guard_ready is {{ $value }}: new clients of its routes are refused.",
            hold="2m",
        ),
    ),
    # Brokers answer, and records are not read.
    Fault(
        "a producer holds a transaction open",
        "`kafka-transactions.sh abort` ends it; the producer's `transaction.timeout.ms` bounds the "
        "next one. `isolation: read_uncommitted` does not wait, and sends aborted records, too.",
        look="`kafka-transactions.sh find-hanging` finds it.",
        rule="open-transaction",
        settings=("the producer", "isolation: read_uncommitted in kafka.topics"),
        meaning="Records behind its beginning wait.",
        alert=Alert(
            "GatewayOpenTransaction",
            "warning",
            "max by (job, instance, cluster, topic, partition) "
            "(gateway_partition_open_transaction_seconds) > 120",
            "A transaction holds {{ $labels.topic }}-{{ $labels.partition }} open",
            "Clients have had nothing of it for {{ $value | humanizeDuration }}.",
        ),
    ),
    Fault(
        "a quota of Kafka throttles the gateway",
        "Raise the quota, or read less: fewer `listen.workers`, as each worker reads on its own, "
        "and a larger `cache`.",
        look="`kafka-configs.sh --describe --entity-type clients` shows quotas.",
        rule="kafka-throttles",
        settings=("consumer_byte_rate and request_percentage of the gateway's client id or user",),
        alert=Alert(
            "GatewayThrottled",
            "warning",
            "sum by (job, instance, cluster) "
            "(rate(gateway_kafka_throttled_seconds_total[5m])) > 0.1",
            "Brokers throttle {{ $labels.instance }}",
            "A quota made it wait for {{ $value | humanizePercentage }} of 5 minutes.",
            hold="5m",
        ),
    ),
    # What a process does makes everything slow.
    Fault(
        "the event loop is busy, so everything waits",
        "Let more workers or gateways share the clients, or send less: `interval`, filters, "
        "fields. If the process uses less than a core, the host has too few, or a quota throttles "
        "the container.",
        look="`process_cpu_seconds_total` says what the process uses.",
        rule="loop-lag",
        settings=("listen.workers", "routes[].with.interval", "more replicas"),
        details="[Limits and scaling](limits.md)",
        alert=Alert(
            "GatewayEventLoopLag",
            "warning",
            "worker:gateway_event_loop_lag_seconds:p99_5m > 0.1",
            "Worker {{ $labels.worker }} of {{ $labels.instance }} is overloaded",
            "It is {{ $value | humanizeDuration }} late (99th percentile).",
            hold="5m",
        ),
    ),
    Fault(
        "what `memory` limits is used up",
        "Raise `memory`, or keep less in `cache`. While that is too small, clients that come back "
        "read from Kafka, which is slower; nothing is lost.",
        look="`gateway_memory_bytes` says what takes it.",
        rule="memory-full",
        settings=("memory", "kafka.topics[].cache"),
        meaning="New clients get 503 when half of it cannot be freed.",
        details="""\
| `part` | What to do |
|---|---|
| `tables` | Serve fewer [snapshots](snapshots.md) |
| `views` | Bound the filters and topics that clients choose |
| `parsed` | Send the sidecar fewer requests at once |
| `unsent`, `received`, `responses` | See [slow clients](#gatewayslowclients) |""",
        alert=Alert(
            "GatewayMemoryNearLimit",
            "warning",
            "instance:gateway_memory_pinned:ratio > 0.4",
            "{{ $labels.instance }} will soon refuse clients for want of memory",
            "{{ $value | humanizePercentage }} of `memory` cannot be freed; the limit is 50 %.",
            hold="2m",
        ),
    ),
    Fault(
        "the back end does not take its records",
        "Correct or start it. The sidecar tries again without limit, and loses nothing.",
        look="`heldUpBy` of `GET /reactive`, and the log, say what it answered.",
        rule="backend-away",
        settings=("sidecar", "the back end"),
        details="If offsets are damaged or too large, seek behind them: `POST "
        "/reactive/{group}/seek`.",
        alert=Alert(
            "SidecarLanesHeldUp",
            "critical",
            "sum by (job, instance, group) (gateway_reactive_held_up_lanes) > 0",
            "The back end of {{ $labels.group }} does not take records",
            "{{ $value }} lanes of {{ $labels.instance }} wait for their next try.",
            hold="5m",
        ),
    ),
    # Clients, whichever records they ask for.
    Fault(
        "an operator paused a route",
        "Resume it: its clients come back by themselves, and miss nothing.",
        rule="route-paused",
        settings=("POST /routes/PATH/resume of the admin API",),
    ),
    Fault(
        "limits refuse clients",
        "Raise the limit that is named, if the host has the memory, or add replicas. Correct "
        "clients that connect again and again.",
        rule="clients-refused",
        settings=("listen.limits", "memory", "more replicas"),
        details="`perAddress` counts the address of a proxy, unless `listen.forwarded` lists it: "
        "[Limits](limits.md).",
        alert=Alert(
            "GatewayRefusedConnections",
            "warning",
            "sum by (job, instance, limit) (rate(gateway_refused_connections_total[5m])) > 0.1",
            "{{ $labels.instance }} turns clients away: limit {{ $labels.limit }}",
            "{{ $value | humanize }} connections per second are refused.",
            hold="5m",
        ),
    ),
    Fault(
        "more clients are refused than served",
        "After a rotation of keys, look at the issuer. 421 names a host that `listen.hosts` lacks.",
        look="`gateway token check` says what a guard thinks of a token.",
        rule="access-refused",
        settings=("guards", "routes[].guarded", "listen.hosts"),
    ),
    Fault(
        "connections of clients accept less than there is to send",
        "If they share a proxy or a network, look there. Otherwise send less (filters, fields, "
        "`interval`, `maxRate`), or choose by `slowClient` what happens to them. Others are not "
        "affected.",
        look="`GET /streams` of the admin API lists them.",
        rule="slow-clients",
        settings=("routes[].with.slowClient", "maxRate", "interval", "filters and fields"),
        details="[Slow clients](slow-clients.md)",
        alert=Alert(
            "GatewaySlowClients",
            "warning",
            "instance:gateway_clients_slow:sum >= 5 "
            "and instance:gateway_clients_slow:sum > 0.05 * instance:gateway_clients:sum",
            "Many clients of {{ $labels.instance }} are slow",
            "{{ $value }} connections, more than 5 %, accept less than is sent to them.",
            hold="5m",
        ),
    ),
    Fault(
        "records reach clients late",
        "Without these, producers write old timestamps, or hold transactions open.",
        look="Look at other alerts first: [loop](#gatewayeventlooplag), "
        "[partitions](#gatewaypartitionlag), [slow clients](#gatewayslowclients).",
        meaning="The objective is 99 % within 1 s of the timestamp: `le` in `recording.yaml`, "
        "`0.01` in the alerts. So fast, the budget of 30 days is used up in 2.",
        alert=Alert(
            "GatewayLatencyFastBurn",
            "critical",
            "job:gateway_deliveries_late:ratio_rate1h > 14.4 * 0.01 "
            "and job:gateway_deliveries_late:ratio_rate5m > 14.4 * 0.01",
            "Records reach clients of {{ $labels.job }} late",
            "{{ $value | humanizePercentage }} of the last hour's took more than 1 s.",
            hold="2m",
        ),
    ),
    Fault(
        "records have reached clients late for hours",
        "As [GatewayLatencyFastBurn](#gatewaylatencyfastburn), used up in 5 days.",
        alert=Alert(
            "GatewayLatencySlowBurn",
            "warning",
            "job:gateway_deliveries_late:ratio_rate6h > 6 * 0.01 "
            "and job:gateway_deliveries_late:ratio_rate30m > 6 * 0.01",
            "Records have reached clients of {{ $labels.job }} late for hours",
            "{{ $value | humanizePercentage }} of the last 6 hours' took more than 1 s.",
            hold="15m",
        ),
    ),
    # Single records do not arrive.
    Fault(
        "records arrive faster than they are read",
        "If the process uses a whole core, add workers, or spread the topics over gateways. "
        "Otherwise the network limits the read, or the broker by its disk or a quota.",
        rule="read-behind",
        settings=("kafka.fetch", "listen.workers"),
        meaning="Clients get everything, late.",
        details="[Busy topics](limits.md#busy-topics)",
        alert=Alert(
            "GatewayPartitionLag",
            "warning",
            "topic:gateway_partition_lag_records:sum > 1000 and "
            "topic:gateway_partition_lag_records:sum > 60 * topic:gateway_fetched_records:rate5m",
            "{{ $labels.instance }} reads {{ $labels.topic }} more slowly than it is written",
            "It is {{ $value | humanize }} records behind: more than it reads in a minute.",
            hold="5m",
        ),
    ),
    Fault(
        "records were gone before they were read",
        "Keep records for longer than clients stay away. They got a gap event with the offsets.",
        rule="gaps",
        settings=("retention.ms and retention.bytes of the topic", "offsetOutOfRange"),
        details="""\
| `reason` | What to do |
|---|---|
| `retention` | Raise the topic's retention, or look why reading was late |
| `truncated` | An unclean election: set `min.insync.replicas` and `acks=all` |
| `recreated` | The topic is another one: let its clients start anew |
| `corrupt` | Look at the disk of the leader; the log has the offsets |
| `too-large` | Let the producer write batches of at most 128 MiB, decompressed |""",
        alert=Alert(
            "GatewayRecordsLost",
            "critical",
            "sum by (job, instance, cluster, topic, reason) (increase("
            'gateway_gaps_total{reason=~"retention|truncated|recreated|corrupt"}[10m])) > 0',
            "Records of {{ $labels.topic }} are gone: {{ $labels.reason }}",
            "{{ $labels.instance }} found {{ $value | humanize }} gaps in 10 minutes.",
        ),
    ),
    Fault(
        "records do not match the model of their topic",
        "Correct the producer or the model.",
        look="`gateway tail` shows such records with their error.",
        rule="records-invalid",
        settings=("kafka.topics[].value", "kafka.topics[].onInvalid", "the producers"),
        meaning="`outcome` says what clients get instead.",
        details="[Schemas](schemas.md)",
        alert=Alert(
            "GatewayInvalidRecords",
            "warning",
            "sum by (job, instance, cluster, topic, outcome) "
            "(increase(gateway_invalid_records_total[10m])) > 0",
            "{{ $labels.topic }} has records that do not match their model",
            "{{ $value | humanize }} in 10 minutes on {{ $labels.instance }}. Clients get "
            "{{ $labels.outcome }} instead.",
            hold="5m",
        ),
    ),
    Fault(
        "records of clients are not written",
        "`refused`: Kafka said why in the gateway's log. `doubtful`: no answer came, so the record "
        "may be there. `unsent`: too many were waiting.",
        rule="writes-fail",
        settings=("the brokers", "min.insync.replicas", "ACLs of the gateway's principal"),
    ),
    # What clients or routes chose.
    Fault(
        "clients get no more than they, or their route, ask for",
        "Let the client give credit sooner, or raise `maxRate`.",
        rule="clients-limited",
        settings=("credit of the client", "routes[].with.maxRate"),
    ),
    Fault(
        "the filters of a route match no record",
        "Compare the filter with a record. One with a parameter matches nothing if the client "
        "sends another value.",
        look="`gateway tail` shows keys, headers and values.",
        rule="filter-matches-none",
        settings=("routes[].with.filters",),
    ),
    # What is to be looked after.
    Fault(
        "records could not be processed",
        "Correct the back end; `gateway dlq retry` delivers them again.",
        look="`gateway dlq show` has them with their errors.",
        rule="dead-letters",
        settings=("gateway dlq", "the back end"),
        alert=Alert(
            "SidecarDeadLetters",
            "warning",
            "sum by (job, instance, group, topic) "
            '(increase(gateway_reactive_records_total{outcome="dead"}[10m])) > 0',
            "The back end of {{ $labels.group }} refuses records of {{ $labels.topic }}",
            "{{ $value | humanize }} dead letters were written in 10 minutes.",
        ),
    ),
    Fault(
        "file descriptors run out",
        "Raise the limit, or set `listen.limits.connections` below it. An eighth (16 to 256) is "
        "kept for Kafka and for operators; when clients have the others, more are closed at once.",
        rule="files-full",
        settings=("ulimit -n, or LimitNOFILE of systemd",),
        alert=Alert(
            "GatewayFileDescriptors",
            "warning",
            'max by (job, instance, worker) (process_open_fds{job=~"gateway.*"} '
            '/ process_max_fds{job=~"gateway.*"}) > 0.8',
            "{{ $labels.instance }} has few file descriptors left",
            "Worker {{ $labels.worker }} uses {{ $value | humanizePercentage }} of its own.",
            hold="5m",
        ),
    ),
    Fault(
        "the certificate of `listen.tls` expires",
        "Replace the files: they are loaded when they change, without a reload.",
        look="If they are new already, the log says why they were refused.",
        rule="certificate-expires",
        settings=("listen.tls",),
        alert=Alert(
            "GatewayCertificateExpires",
            "warning",
            f"{_EXPIRES_IN}14 * 86400",
            "The certificate of {{ $labels.instance }} expires within two weeks",
            _VALID_FOR,
            hold="1h",
        ),
    ),
    Fault(
        "the certificate expires within two days, and clients cannot connect after that",
        "As [GatewayCertificateExpires](#gatewaycertificateexpires).",
        alert=Alert(
            "GatewayCertificateExpiresSoon",
            "critical",
            f"{_EXPIRES_IN}2 * 86400",
            "The certificate of {{ $labels.instance }} expires within two days",
            _VALID_FOR,
        ),
    ),
    Fault(
        "workers run different versions",
        "Restart the gateway: its files were replaced, and a worker was started since.",
        rule="versions-differ",
        settings=("a restart",),
    ),
    # Only alerts watch for these.
    Fault(
        "a new configuration was refused",
        "Correct what it says, then `gateway reload`. The gateway goes on with the one before; a "
        "restart would fail.",
        look="Run `gateway check`.",
        alert=Alert(
            "GatewayReloadFailed",
            "warning",
            "min by (job, instance) (gateway_last_reload_successful) == 0",
            "{{ $labels.instance }} refused its new configuration",
            "gateway_last_reload_successful is {{ $value }}: a restart would fail.",
        ),
    ),
    Fault(
        "a group has more to process than its back ends take in 5 minutes",
        "If lanes are [held up](#sidecarlanesheldup), look at the back end. If it is slow, raise "
        "`parallelism` or the size of batches, or run up to one instance for each partition.",
        look="`GET /adm/groups/GROUP/lag` has the partitions.",
        alert=Alert(
            "SidecarGroupLag",
            "warning",
            "group:gateway_reactive_lag_records:sum > 1000 and "
            "group:gateway_reactive_lag_records:sum > 300 * group:gateway_reactive_records:rate5m",
            "Group {{ $labels.group }} is far behind in {{ $labels.topic }}",
            "{{ $value | humanize }} records are not processed.",
            hold="5m",
        ),
    ),
    Fault(
        "Kafka deleted records before a group had read them",
        "Raise the retention of the topic, and look why the group was late.",
        look="`GET /adm/groups/GROUP/lag` has the partitions.",
        alert=Alert(
            "SidecarRecordsMissed",
            "critical",
            "sum by (job, instance, group) "
            "(increase(gateway_consumer_missing_records_total[10m])) > 0",
            "Kafka deleted records before group {{ $labels.group }} had read them",
            "{{ $value | humanize }} records in 10 minutes.",
        ),
    ),
    Fault(
        "audit records were not written",
        "`dropped`: too many were waiting. `failed`: Kafka or the file refused them.",
        look="The log says which topic or file, and why.",
        alert=Alert(
            "SidecarAuditRecordsLost",
            "warning",
            "sum by (job, instance, outcome) "
            '(increase(gateway_audit_records_total{outcome=~"dropped|failed"}[10m])) > 0',
            "Audit records of {{ $labels.instance }} are {{ $labels.outcome }}",
            "{{ $value | humanize }} in 10 minutes.",
        ),
    ),
    Fault(
        "a query of ksqlDB returns no rows",
        "Correct the query, or start ksqlDB. The query is started again by itself.",
        look="The log has what ksqlDB answered.",
        alert=Alert(
            "SidecarQueryNotRunning",
            "warning",
            "max by (job, query) (gateway_ksqldb_query_running) == 0",
            "ksqlDB query {{ $labels.query }} returns no rows",
            "gateway_ksqldb_query_running is {{ $value }} in all sidecars.",
            hold="2m",
        ),
    ),
    Fault(
        "the query of a Spark job does not run",
        "Its input waits in Kafka. If its `trigger` is `available-now`, it ends by itself: exclude "
        "it from the alert.",
        look="The log of the driver has the reason.",
        alert=Alert(
            "PipelineNotRunning",
            "critical",
            "min by (job, instance, exported_job) (gateway_pipeline_running) == 0",
            "Job {{ $labels.exported_job }} does not run",
            "gateway_pipeline_running is {{ $value }}.",
            hold="2m",
        ),
    ),
    Fault(
        "Kafka deleted input before a job read it",
        "Raise the retention of the topic, and look whether the job is [behind](#pipelinebehind).",
        look="The log has each range, and `<output>.gaps` those that were not read, if the job "
        "writes it.",
        alert=Alert(
            "PipelineRecordsLost",
            "critical",
            "sum by (job, instance, exported_job, topic) "
            "(increase(gateway_pipeline_gaps_total[10m])) > 0",
            "Kafka deleted input of job {{ $labels.exported_job }} before it was read",
            "{{ $value | humanize }} ranges of {{ $labels.topic }} in 10 minutes.",
        ),
    ),
    Fault(
        "a job has more to read than it reads in 5 minutes",
        "Change the setting that it names.",
        look="Run `gateway pipeline doctor JOB`.",
        alert=Alert(
            "PipelineBehind",
            "warning",
            "sum by (job, instance, exported_job) (gateway_pipeline_behind_offsets) > 1000 "
            "and sum by (job, instance, exported_job) (gateway_pipeline_behind_offsets) "
            "> 300 * sum by (job, instance, exported_job) (gateway_pipeline_rows_per_second)",
            "Job {{ $labels.exported_job }} is far behind its input",
            "{{ $value | humanize }} records are left.",
            hold="5m",
        ),
    ),
    Fault(
        "a job reports a problem of its own",
        "Do what they say.",
        look="Run `gateway pipeline doctor JOB`, and read the log of the driver.",
        details="""\
| `alert` | Cause |
|---|---|
| `late` | Too many events come later than the watermark allows |
| `state-damaged` | A file of the state is damaged |
| `table-not-refreshed` | A joined table cannot be read again |
| `open-transaction` | A transaction in an input is open for a minute, and holds it back |""",
        alert=Alert(
            "PipelineAlert",
            "warning",
            "max by (job, instance, exported_job, alert) (gateway_pipeline_alerts) > 0",
            "Job {{ $labels.exported_job }}: {{ $labels.alert }}",
            "gateway_pipeline_alerts is {{ $value }}.",
            hold="1m",
        ),
    ),
)

RULES = {fault.rule: fault for fault in FAULTS if fault.rule}
"""The faults that the doctor looks for, by the name by which it reports them."""
