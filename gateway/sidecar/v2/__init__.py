"""Serve the dialect of Confluent's REST Proxy v2 over the contract's consumers and producer.

It is the API as its clients use it and as its documentation has it:
https://docs.confluent.io/platform/current/kafka-rest/api.html. `dialect` translates requests and
responses of consumer instances, `produce` writes records, and `topics` lists what Kafka has.
`media` parses media types, `errors` has the error codes, and `endpoints` what `produce` and
`topics` share. `app` creates the components; `consumer` chooses the dialect for each request. Start
with `dialect`.
"""
