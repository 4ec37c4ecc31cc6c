"""Define the sections of the configuration as pydantic models.

Start at `settings.Settings`, which has all of them; each module below it defines one section and
the sections inside that one. `crosscheck` checks what must agree between sections, `schema` builds
the JSON Schema. The docstrings of the classes and the descriptions of the fields become the
descriptions in the JSON Schema, which editors show: they are written for operators. Each
description of a field says what the option is, then who needs it.
"""
