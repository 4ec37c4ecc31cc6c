"""Types that sections share: durations, sizes, addresses, paths, conditions, filters.

Every section is a `section.Section`, its options of the types in `fields`.
"""
