"""What every part of the settings has in common, and how a part is refused.

A section is a frozen pydantic model that reads the YAML's words (camelCase, or zilla's
kebab-case where zilla has the option) and knows no other. `look` checks the raw input,
so that what depends on several options is told together with every wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

PROBLEM_ERROR_TYPE = "refused"  # the pydantic error type of what is said here in full


class Problem(NamedTuple):
    """What is wrong below a section: the way there, and `what; what to do`.

    key: it is about the key at the end of the way, not about its value.
    """

    loc: tuple[str | int, ...]
    message: str
    is_key: bool = False


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Problems between options; `raw` is as written, nulls left out, and may be all wrong."""
        return ()

    @model_validator(mode="wrap")
    @classmethod
    def _validate_with_checks(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        problems: list[InitErrorDetails] = []
        if isinstance(data, Mapping):
            written = {key: value for key, value in data.items() if value is not None}
            problems = [_build_error_details(problem) for problem in cls.check_raw(written)]
        try:
            made = handler(data)
        except ValidationError as error:
            if not problems:
                raise
            problems = [*_iter_error_details(error), *problems]
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems, hide_input=True)
        return made


def create_value_error(message: str) -> PydanticCustomError:
    """The error of a value, for a validator to raise: `what; what to do`."""
    return PydanticCustomError(PROBLEM_ERROR_TYPE, "{message}", {"message": message})


def create_section_error(*problems: Problem) -> ValidationError:
    """The error of a section, for an `after` validator to raise."""
    details = [_build_error_details(problem) for problem in problems]
    return ValidationError.from_exception_data("settings", details, hide_input=True)


def _build_error_details(problem: Problem) -> InitErrorDetails:
    context = {"message": problem.message, "key": problem.is_key, "whole": not problem.loc}
    kind = PydanticCustomError(PROBLEM_ERROR_TYPE, "{message}", context)
    return InitErrorDetails(type=kind, loc=problem.loc, input=None)


def _iter_error_details(error: ValidationError) -> Iterable[InitErrorDetails]:
    """Errors of pydantic in a form that can be raised together with ours."""
    for found in error.errors(include_url=False):
        context = {**found.get("ctx", {}), "message": found["msg"]}
        kind = PydanticCustomError(found["type"], "{message}", context)
        yield InitErrorDetails(type=kind, loc=found["loc"], input=None)
