"""Serve the dialect of Confluent's REST Proxy v2 over the contract's consumers and producer.

It is the API as its clients use it and as its documentation has it:
https://docs.confluent.io/platform/current/kafka-rest/api.html. Start with `dialect`, which
translates requests and responses of consumer instances, and has what `produce` and `topics` share.
`produce` writes records, `topics` lists Kafka's topics, partitions and brokers, `media` parses
media types, and `errors` has the error codes. `consumer` chooses the dialect for each request.
"""
