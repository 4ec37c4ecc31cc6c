"""Requests made up from a served OpenAPI document, and what its answers must be.

What is asked for at random is seldom there: names of topics, groups and instances are often put in
that are. `ask` blocks; the server is another thread's.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode, checks
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks as openapi

MAX_TRIES = 20
MAX_WAIT_MS = 100  # milliseconds of a wait that is asked for
WAIT_PARAMETERS = frozenset(
    {"timeout", "requestWaitMs", "request_wait_ms", "consumer.request.timeout.ms", "linger"}
)
RESPONSE_CHECKS = [
    checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
]


@dataclass
class ContractTester:
    """prepare: done before an operation is asked for. known: values for a path parameter, a
    parameter or a member, by its name, mostly put in; fixed: those that always are.

    statuses: what was answered, by operation.
    """

    document: Mapping[str, Any]
    url: str
    prepare: Callable[[], object]
    known_values: Mapping[str, Sequence[Any]]
    fixed_values: Mapping[str, Any]
    excluded_operations: frozenset[str] = frozenset()
    statuses: dict[str, Counter[int]] = field(default_factory=dict)

    def test_operations(self, examples: int, *, is_random: bool = False) -> None:
        """So many requests of each operation and of each kind: as they should be, and not.
        by_chance: others every time. Raises AssertionError with all that was found."""
        wrong: list[str] = []
        for found in schemathesis.openapi.from_dict(dict(self.document)).get_all_operations():
            operation: Any = found.ok()
            name = operation.definition.raw["operationId"]
            if name in self.excluded_operations:
                continue
            self.statuses[name] = Counter()
            for mode in GenerationMode:
                if mode is GenerationMode.NEGATIVE and not _can_be_invalid(operation):
                    continue
                try:
                    self._test_operation(name, operation, mode, examples, is_random)
                except Unsatisfiable:
                    continue
                except (Exception, FailureGroup) as exc:
                    notes = [str(exc), *getattr(exc, "__notes__", ())]
                    wrong.append("\n".join([f"{name}, {mode.value}: {type(exc).__name__}", *notes]))
        assert not wrong, "\n\n".join(wrong)

    def _test_operation(
        self, name: str, operation: Any, mode: GenerationMode, examples: int, is_random: bool
    ) -> None:
        self.prepare()

        @settings(
            max_examples=examples, deadline=None, database=None, derandomize=not is_random,
            phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=mode))
        def check_case(case: Case) -> None:
            self._fill_case(name, case)
            answer = self._send_case(case)
            self.statuses[name][answer.status_code] += 1
            case.validate_response(answer, checks=RESPONSE_CHECKS)

        check_case()

    def _send_case(self, case: Case) -> Any:
        """A broker that had no time is none of the sidecar's: it is asked again, as 503 says."""
        for _ in range(MAX_TRIES):
            answer = case.call(base_url=self.url, timeout=60)
            if answer.status_code != 503:
                break
            time.sleep(1)
        return answer

    def _fill_case(self, name: str, case: Case) -> None:
        if any(each.name == "timeout" for each in case.operation.query):
            case.query = {"timeout": MAX_WAIT_MS, **(case.query or {})}
        places = ("path_parameters", "query", "body")
        made = repr([name, *(getattr(case, place) for place in places)])
        chance = random.Random(zlib.crc32(made.encode()))  # the same for the same, to be repeated
        for place in places:
            value = getattr(case, place)
            if isinstance(value, (dict, list)):
                setattr(case, place, self._replace_values(value, chance))

    def _replace_values(self, value: Any, rng: random.Random, name: str = "") -> Any:
        if name in WAIT_PARAMETERS and isinstance(value, int) and value > MAX_WAIT_MS:
            return MAX_WAIT_MS
        if name in self.fixed_values:
            return self.fixed_values[name]
        if name in self.known_values and rng.random() < 0.9:
            return rng.choice(self.known_values[name])
        if isinstance(value, dict):
            return {key: self._replace_values(each, rng, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self._replace_values(each, rng) for each in value]
        return value


def _can_be_invalid(operation: Any) -> bool:
    """Any text may be in a path."""
    return bool(operation.body or operation.query or operation.headers)
