"""Find out the format of log lines before a configuration is loaded.

Loading may warn, and fail. These lines, too, must be JSON objects if the file asks for that, even
if something else in it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from .yaml_document import parse_document

LogFormat: TypeAlias = Literal["console", "json"]

VARIABLE = "GATEWAY_TELEMETRY__LOGS__FORMAT"
# YAML that is malformed has no options. Then only this says what its author wants.
_JSON_FORMAT = re.compile(r"""^\s*["']?format["']?\s*:\s*["']?json["']?\s*,?\s*$""", re.MULTILINE)


def find_log_format(text: str, name: str, environ: Mapping[str, str]) -> LogFormat:
    """Return the value of `telemetry.logs.format`, as far as it can be read; else `console`."""
    value: object = environ.get(VARIABLE)
    if not value:
        value = parse_document(text, name=name, environ=environ).values
        if value is None and _JSON_FORMAT.search(text):
            return "json"
        for key in ("telemetry", "logs", "format"):
            value = value.get(key) if isinstance(value, Mapping) else None
    return "json" if value == "json" else "console"
