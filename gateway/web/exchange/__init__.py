"""Requests with one response: produce, request and reply, the latest record of a key.

`dispatch` admits a request, and passes it to the `Exchange` of its route's capability, which
`kinds` lists: `fetch`, or `reply`, which writes records by `produce`. `write_request` is a client's
record before it goes to Kafka, also for WebSockets. `replies` reads the topics of replies, and
`key_locks` lets one worker at a time write a key. Start reading with `dispatch`, which
`web/streams/middleware.py` calls.
"""
