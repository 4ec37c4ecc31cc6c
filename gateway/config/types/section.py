"""Define the base class of every section, and the errors of a section.

A section is a frozen pydantic model that reads the YAML's words (camelCase, or zilla's kebab-case
where zilla has the option) and refuses unknown keys. `Section.expand_written` writes shorthands and
old spellings out. Then `Section.check_raw` checks the raw input before pydantic does, so that
problems between options are reported together with every invalid value.

`as_mapping` and `as_list` read values as written, any of which may be invalid.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeAlias

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

Loc: TypeAlias = tuple[str | int, ...]
"""The path of an option."""
ErrorKey: TypeAlias = tuple[Loc, str, str]
"""The path, the type and the message of an error, to compare it by."""


class Problem(NamedTuple):
    """A problem below a section, as `problem; remedy`.

    Attributes:
        loc: The path from the section to the option.
        is_key: Whether the problem is about the key at the end of the path, not about its value.
        needs: The paths of what else a check between sections draws its conclusion from. The last
            step `*` stands for the names or items there, whatever is below them.
        named: The path of an item of a list whose number the message says. It would be another one
            in the file if an item before it was left out.
    """

    loc: Loc
    message: str
    is_key: bool = False
    needs: tuple[Loc, ...] = ()
    named: Loc = ()


class WrittenForm(NamedTuple):
    """The long form of a section or option that was written in another form.

    Attributes:
        moves: For each path below it that the file does not have, the path of the file that it is
            from. All paths begin at the section or option.
        old_spellings: The keys with an old spelling, each with the new one.
    """

    value: Any
    moves: Mapping[Loc, Loc] = {}
    old_spellings: Mapping[str, str] = {}


class Section(BaseModel):
    """The base class of all sections. Instances are immutable and compare by value."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True
    )

    old_names: ClassVar[Mapping[str, str]] = {}
    """Names that options had before, each with the present one. They are still read."""
    short_keys: ClassVar[tuple[str, ...]] = ()
    """The keys of shorthands, which are no options themselves; for suggestions."""

    @classmethod
    def expand_written(cls, value: Any) -> WrittenForm | None:
        """Return the long form of the section as written; None if it has that form already."""
        return cls.respell(value) if isinstance(value, Mapping) else None

    @classmethod
    def normalize(cls, value: Any) -> Any:
        """Return the section as written in the form that `check_raw` and pydantic read."""
        form = cls.expand_written(value)
        return value if form is None else form.value

    @classmethod
    def describe_unknown_key(cls, key: str) -> str | None:
        """Return the message for a key that is no option here; None for the usual one."""
        return None

    @classmethod
    @functools.cache
    def list_options(cls) -> Mapping[str, Any]:
        """Return the types of the options with their annotations, by the key in YAML."""
        return {
            field.alias or name: Annotated[field.annotation, *field.metadata]
            if field.metadata
            else field.annotation
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def respell(cls, raw: Mapping[Any, Any]) -> WrittenForm | None:
        """Return options with their present names: `max-age` as `maxAge`, or the other way round.

        Return None if all have them. A key whose present name is written too stays as it is, and is
        refused as unknown.
        """
        options = cls.list_options()
        unknown = [key for key in raw if isinstance(key, str) and key not in options]
        if not unknown:
            return None
        names = {_to_camel_case(option): option for option in options} | dict(cls.old_names)
        respelled = {
            key: names[spelling]
            for key in unknown
            if (spelling := _to_camel_case(key)) in names and names[spelling] not in raw
        }
        if not respelled:
            return None
        return WrittenForm(
            {respelled.get(key, key): value for key, value in raw.items()},
            {(new,): (old,) for old, new in respelled.items()},
            respelled,
        )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Return the problems between options, any of which may be invalid; `raw` has no nulls."""
        return ()

    @classmethod
    def suggest_option(cls, key: str, value: object) -> str | None:
        """Return the option for an unknown key; None to suggest one of a similar name.

        Args:
            value: Its value, which must not be shown.
        """
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _validate_with_checks(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate, and raise the problems of `check_raw` together with pydantic's."""
        data = cls.normalize(data)
        problems: list[Problem] = []
        if isinstance(data, Mapping):
            written = {key: value for key, value in data.items() if value is not None}
            problems += cls.check_raw(written)
        errors: Iterable[InitErrorDetails] = ()
        try:
            section = handler(data)
        except ValidationError as error:
            errors = describe_unknown_keys(read_errors(error), cls.describe_unknown_key)
        if errors or problems:
            raise build_error((*errors, *map(build_details, problems)))
        return section


def _to_camel_case(key: str) -> str:
    """Return a key in kebab-case as one in camelCase; any other key as it is."""
    return re.sub(r"-([a-z])", lambda match: match[1].upper(), key)


def create_value_error(message: str) -> PydanticCustomError:
    """Return the error of a value, for a validator to raise with `problem; remedy`."""
    return PydanticCustomError(PROBLEM_ERROR_TYPE, "{message}", {"message": message})


def create_section_error(*problems: Problem) -> ValidationError:
    """Return the error of a section, for an `after` validator to raise."""
    return build_error(map(build_details, problems))


def build_error(details: Iterable[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data("settings", list(details), hide_input=True)


def build_details(problem: Problem) -> InitErrorDetails:
    context = {"message": problem.message, "key": problem.is_key, "whole": not problem.loc}
    kind = PydanticCustomError(PROBLEM_ERROR_TYPE, "{message}", context)
    return InitErrorDetails(type=kind, loc=problem.loc, input=None)


def read_errors(error: ValidationError) -> dict[ErrorKey, InitErrorDetails]:
    """Return pydantic's errors in a form that can be raised together with ours."""
    details = {}
    for each in error.errors(include_url=False):
        loc, kind, message = each["loc"], each["type"], each["msg"]
        custom = PydanticCustomError(kind, "{message}", {**each.get("ctx", {}), "message": message})
        details[loc, kind, message] = InitErrorDetails(type=custom, loc=loc, input=None)
    return details


def describe_unknown_keys(
    errors: Mapping[ErrorKey, InitErrorDetails], describe: Callable[[str], str | None]
) -> list[InitErrorDetails]:
    """Return the errors of a section with its unknown keys described; None leaves one as it is."""
    described = []
    for (loc, kind, _), details in errors.items():
        is_unknown = kind == "extra_forbidden" and len(loc) == 1
        message = describe(str(loc[0])) if is_unknown else None
        described.append(details if message is None else build_details(Problem(loc, message, True)))
    return described


def nest(loc: Loc, problems: Iterable[Problem], needs: tuple[Loc, ...] = ()) -> Iterator[Problem]:
    """Yield the problems of a section with their paths from the section around it."""
    for each in problems:
        yield each._replace(loc=(*loc, *each.loc), needs=(*each.needs, *needs))


def iter_leaves(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Yield the path and the value of everything in typed sections that has nothing below it."""
    items: Iterable[tuple[str | int, Any]]
    if isinstance(value, Section):
        items = (
            (info.alias or name, getattr(value, name))
            for name, info in type(value).model_fields.items()
        )
    elif isinstance(value, Mapping):
        items = value.items()
    elif type(value) is tuple:
        items = enumerate(value)
    else:
        yield loc, value
        return
    for step, item in items:
        yield from iter_leaves(item, (*loc, step))


def as_mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
