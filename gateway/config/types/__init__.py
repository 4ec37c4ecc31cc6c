"""Provide the types that sections share: durations, sizes, addresses, paths, conditions, filters.

Every section is a `section.Section`, and its options have the types of `fields`, `address`,
`units`, `path` and `condition`. The modules of `gateway.config.sections` import them. Start reading
at `section`, then `fields`.
"""
