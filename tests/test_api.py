"""What `import gateway` gives: every public name, and none of it before it is used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gateway
from gateway import errors

PAGE = (Path(__file__).parents[1] / "docs" / "python-api.md").read_text()
PUBLIC_MODULES = ("api.events", "api.gateway", "api.stream")  # all of `__all__` there is public
EXCEPTIONS = {
    name
    for name, each in vars(errors).items()
    if inspect.isclass(each) and issubclass(each, errors.GatewayError)
}
WIRING = {"Access", "Application", "EmbeddedKafka", "Grant", "Granted", "Settings"}
WIRING |= {"create_app", "load", "loads"}


def test_what_modules_call_public_is_exported_and_on_the_page_and_nothing_else():
    named = [name for each in PUBLIC_MODULES for name in import_module(f"gateway.{each}").__all__]
    assert sorted(gateway.__all__) == sorted({*named, *EXCEPTIONS, *WIRING, "__version__"})
    assert all(getattr(gateway, name) is not None for name in gateway.__all__)
    assert set(gateway.__all__) <= set(dir(gateway))
    with pytest.raises(AttributeError, match="has no attribute 'Gatway'"):
        gateway.Gatway  # type: ignore[attr-defined]  # noqa: B018
    for name in {*named, *WIRING}:
        assert re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`|\b{name}\(", PAGE), name


def test_type_checkers_see_the_same_names():
    block = next(
        each
        for each in ast.parse(inspect.getsource(gateway)).body
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
    )
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    imported = {alias.name: each.module for each in imports for alias in each.names}
    assert set(gateway.__all__) == {*imported, "__version__"}
    for name, module in imported.items():
        assert getattr(import_module(f"gateway.{module}"), name) is getattr(gateway, name), name


@pytest.mark.needs("process")
def test_importing_it_imports_nothing_else_and_its_streams_need_no_server():
    code = (
        "import sys; before = set(sys.modules); import gateway; "
        "print(sorted(set(sys.modules) - before - {'gateway', 'gateway.version', '__future__'})); "
        "gateway.Gateway; print(list(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "[]" or sys.version_info < (3, 11, 3)  # where asyncio is repaired
    for server in ("starlette", "uvicorn", "sse_starlette", "typer"):
        assert f"'{server}'" not in second
