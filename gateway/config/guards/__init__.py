"""Define the section `guards`: how the gateway identifies a client.

A guard verifies a signed token (`jwt`), asks the application (`http`), reads a client certificate
(`x509`), or knows the users that the file lists (`inline`).

To add a kind, write a subclass of `guard_section.GuardSection`, which has its options and their
meaning for other sections, and enter it in `kinds.GUARD_KINDS`; then write a subclass of
`gateway.web.access.guard.Guard`, which admits clients and describes for documents how they identify
themselves, and enter it in `gateway.web.access.guards.GUARD_LOADERS`. They are two classes because
programs without HTTP, such as the pipeline, read the configuration, too.
"""
