"""Serve consumers over HTTP: instances that are members of groups, created and polled by requests.

Start with `consumers`, the component: it has the routes and the operations, and answers long polls.
An `instance.ConsumerInstance` is one member of a group, `instances` are all of this process, and
`instance_options` are a client's settings for one. `dialect` has the two APIs that clients speak,
the contract's and Confluent's. `record_json` renders records, and `topics` lists topics, and reads
records without a group.
"""
