"""Provide the types that sections share: durations, sizes, addresses, paths, conditions, filters.

Every section is a `section.Section`, and its options have the types of `fields`, `address`,
`units`, `path` and `condition`. `substitution` fills in `${env.NAME}`, and a `template` has
placeholders for what requests bring. Start reading at `section`, then `fields`.
"""
