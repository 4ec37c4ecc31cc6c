"""Serve consumers over HTTP: instances that are members of groups, created and polled by requests.

Start with `consumers`, the component: it has the routes and the operations. An
`instance.ConsumerInstance` is one member of a group, `instances` are all of this process, and
`instance_options` are a client's settings for one. `dialect` abstracts from the two APIs that
clients speak, the contract's and Confluent's (`v2`). `poll_response` answers a long poll,
`record_json` renders records, and `stateless` reads records without a group.
"""
