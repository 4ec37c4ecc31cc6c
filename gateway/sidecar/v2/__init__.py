"""Serve the dialect of Confluent's REST Proxy v2 over the contract's consumers and producer.

It is the API as its clients use it and as its documentation has it:
https://docs.confluent.io/platform/current/kafka-rest/api.html. Start with `dialect`, which
translates requests and responses of consumer instances. `produce` writes records, `topics` lists
Kafka's topics, partitions and brokers, `media` parses media types, `errors` has the error codes,
and `endpoints` is shared by `produce` and `topics`. `consumer` chooses the dialect for each
request.
"""
