"""Turn a request, or a message, into a view.

`routes` finds the route of a request and admits its client; `paths` and `views` say what it asks
for, as do the `messages` of WebSockets. `replies` reads the topics of replies. `open_streams` has
all streams of the process, on any wire, to change and end them. The packages
`streams`, `websocket` and `exchange` call it. Start with `routes`.
"""
