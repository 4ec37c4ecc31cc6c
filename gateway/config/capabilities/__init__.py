"""Define the section `with` of routes, which has the options of one capability.

To add a capability whose requests have one response, write a subclass of `options.With` with its
options, and enter it in `kinds.WITH_KINDS`; then write a subclass of
`gateway.web.exchange.exchange.Exchange`, which responds to requests and describes them for
documents, and enter it in `gateway.web.exchange.dispatch.EXCHANGES`.
"""
