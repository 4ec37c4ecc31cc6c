"""What `import gateway` gives: every public name, documented, and none of it before it is used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import typing
from importlib import import_module
from pathlib import Path

import pytest

import gateway
from gateway import errors

PAGE = (Path(__file__).parents[1] / "docs" / "python-api.md").read_text()
SPELT_OUT = ("api.events", "api.gateway", "api.stream")  # all of `__all__` there is public
EXCEPTIONS = [
    name
    for name, each in vars(errors).items()
    if inspect.isclass(each) and issubclass(each, errors.GatewayError)
]


def test_every_public_name_is_there_and_listed_once():
    assert len(gateway.__all__) == len(set(gateway.__all__))
    for name in gateway.__all__:
        assert getattr(gateway, name) is not None
        assert name in dir(gateway)
    with pytest.raises(AttributeError, match="has no attribute 'Gatway'"):
        gateway.Gatway  # type: ignore[attr-defined]  # noqa: B018


def test_what_its_rooms_call_public_is_exported():
    for room in SPELT_OUT:
        module = import_module(f"gateway.{room}")
        for name in module.__all__:
            assert getattr(gateway, name) is getattr(module, name), name
    for name in EXCEPTIONS:
        assert getattr(gateway, name) is getattr(errors, name), name


def test_nothing_is_exported_that_no_room_calls_public():
    rooms = {name for room in SPELT_OUT for name in import_module(f"gateway.{room}").__all__}
    wiring = {"Access", "Application", "EmbeddedKafka", "Grant", "Granted", "Settings"}
    wiring |= {"create_app", "load", "loads"}
    assert set(gateway.__all__) == rooms | set(EXCEPTIONS) | wiring | {"__version__"}


def test_type_checkers_see_the_same_names():
    block = next(
        each for each in ast.parse(inspect.getsource(gateway)).body if isinstance(each, ast.If)
    )
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    imported = {alias.name: each.module for each in imports for alias in each.names}
    assert set(gateway.__all__) == {*imported, "__version__"}
    assert imported == gateway._MODULE_BY_NAME


@pytest.mark.parametrize("name", [each for each in gateway.__all__ if each != "__version__"])
def test_every_name_is_documented_with_all_its_public_methods(name: str):
    found = getattr(gateway, name)
    if typing.get_origin(found) is not None or not hasattr(found, "__name__"):
        return  # an alias
    assert inspect.getdoc(found), name
    if inspect.isclass(found):
        for method, value in vars(found).items():
            public = not method.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, property)
            )
            if public:
                assert inspect.getdoc(value), f"{name}.{method}"


@pytest.mark.parametrize("name", [each for each in gateway.__all__ if each != "__version__"])
def test_every_name_is_on_the_page_about_python(name: str):
    if name in EXCEPTIONS:  # drawn in the docstring of their module, which the page names
        assert re.search(rf"-- {name}\b|^ +{name}$", errors.__doc__ or "", re.M)
        assert "GatewayError" in PAGE
    else:
        assert re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`|\b{name}\(", PAGE), name


def test_importing_it_imports_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import gateway; "
        "print(sorted(set(sys.modules) - before - {'gateway', 'gateway.version'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() in ("[]", "['__future__']")


def test_streams_of_a_program_need_no_server():
    code = "import sys, gateway; gateway.Gateway; print([n for n in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for server in ("starlette", "uvicorn", "sse_starlette", "typer"):
        assert f"'{server}'" not in said.stdout
