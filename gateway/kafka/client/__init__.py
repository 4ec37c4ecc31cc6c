"""Connect to one Kafka cluster: connections, metadata, coordinators and offsets.

Start reading with `cluster`: fetching, producing, groups and the admin calls get a `Cluster` and
reach everything else through it. `connections` shares one connection to each broker and role,
`metadata` watches topics, `brokers` chooses brokers to ask and finds the coordinators of groups,
`offsets` looks up where logs begin and end, and `outages` says why something cannot be used.
`security` has TLS and SASL, `aiokafka_internals` all that is used of aiokafka's connections.
"""

from . import aiokafka_internals as aiokafka_internals  # first: it checks aiokafka
