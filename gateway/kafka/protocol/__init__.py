"""Encode Kafka's requests and decode its responses, for aiokafka's connections.

Start reading with `requests`: it has the base class of all requests, and Metadata as the first one.
It also reads and writes single fields. Each `*_messages` module has the requests of one subject.
`client`, `fetch`, `produce`, `group` and `admin` send the requests.
"""
