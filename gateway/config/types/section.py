"""Define the base class of every section, and how a section is refused.

A section is a frozen pydantic model that reads the YAML's words (camelCase, or zilla's kebab-case
where zilla has the option) and refuses unknown keys. `Section.check_raw` checks the raw input
before pydantic does, so that problems between options are reported together with every invalid
value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

PROBLEM_ERROR_TYPE = "refused"  # the pydantic error type of messages that need no rewording


ErrorKey: TypeAlias = tuple[tuple[str | int, ...], str, str]
"""The path, the type and the message of an error, to compare it by."""


class Problem(NamedTuple):
    """A problem below a section.

    Attributes:
        loc: The path from the section to the option.
        message: `what is wrong; what to do`.
        is_key: Whether the problem is about the key at the end of the path, not about its value.
    """

    loc: tuple[str | int, ...]
    message: str
    is_key: bool = False


class Section(BaseModel):
    """The base class of all sections. Instances are immutable and compare by value."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Return the problems between options.

        Args:
            raw: The options as written, without nulls. Any value may be invalid.
        """
        return ()

    @classmethod
    def suggest_option(cls, key: str, value: object) -> str | None:
        """Return what to write in place of an unknown key; None for a key of a similar name.

        Args:
            key: The key.
            value: Its value, which must not be shown.
        """
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _validate_with_checks(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate, and raise the problems of `check_raw` together with pydantic's."""
        problems: list[InitErrorDetails] = []
        if isinstance(data, Mapping):
            written = {key: value for key, value in data.items() if value is not None}
            problems = [_build_error_details(problem) for problem in cls.check_raw(written)]
        try:
            section = handler(data)
        except ValidationError as error:
            if not problems:
                raise
            problems = [*_iter_error_details(error), *problems]
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems, hide_input=True)
        return section


def create_value_error(message: str) -> PydanticCustomError:
    """Return the error of a value, for a validator to raise.

    Args:
        message: `what is wrong; what to do`.
    """
    return PydanticCustomError(PROBLEM_ERROR_TYPE, "{message}", {"message": message})


def create_section_error(*problems: Problem) -> ValidationError:
    """Return the error of a section, for an `after` validator to raise."""
    details = [_build_error_details(problem) for problem in problems]
    return ValidationError.from_exception_data("settings", details, hide_input=True)


def list_errors(error: ValidationError) -> list[ErrorKey]:
    """Return the path, the type and the message of every error in an error."""
    return [(detail["loc"], detail["type"], detail["msg"]) for detail in error.errors()]


def select_errors(
    error: ValidationError, is_wanted: Callable[[ErrorKey], bool]
) -> ValidationError | None:
    """Return an error with some of its errors, as `list_errors` has them; None if none is wanted.

    Args:
        error: The error.
        is_wanted: Returns whether to keep an error.
    """
    pairs = zip(list_errors(error), _iter_error_details(error), strict=True)
    details = [detail for key, detail in pairs if is_wanted(key)]
    if not details:
        return None
    return ValidationError.from_exception_data(error.title, details, hide_input=True)


def merge_errors(title: str, errors: Iterable[ValidationError]) -> ValidationError:
    """Return one error that has all errors of several."""
    details = [detail for error in errors for detail in _iter_error_details(error)]
    return ValidationError.from_exception_data(title, details, hide_input=True)


def replace_unknown_keys(
    error: ValidationError, describe: Callable[[str], str | None]
) -> ValidationError:
    """Return the error of a section in which some of its unknown keys are described.

    Args:
        error: The error.
        describe: Returns the message for a key; None to leave it as it is.
    """
    details = []
    for detail in _iter_error_details(error):
        key = str(detail["loc"][-1]) if len(detail["loc"]) == 1 else ""
        is_unknown = getattr(detail["type"], "type", "") == "extra_forbidden"
        message = describe(key) if is_unknown and key else None
        details.append(
            detail
            if message is None
            else _build_error_details(Problem((key,), message, is_key=True))
        )
    return ValidationError.from_exception_data(error.title, details, hide_input=True)


def _build_error_details(problem: Problem) -> InitErrorDetails:
    context = {"message": problem.message, "key": problem.is_key, "whole": not problem.loc}
    kind = PydanticCustomError(PROBLEM_ERROR_TYPE, "{message}", context)
    return InitErrorDetails(type=kind, loc=problem.loc, input=None)


def _iter_error_details(error: ValidationError) -> Iterable[InitErrorDetails]:
    """Yield pydantic's errors in a form that can be raised together with ours."""
    for detail in error.errors(include_url=False):
        context = {**detail.get("ctx", {}), "message": detail["msg"]}
        kind = PydanticCustomError(detail["type"], "{message}", context)
        yield InitErrorDetails(type=kind, loc=detail["loc"], input=None)
