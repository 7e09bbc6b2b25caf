"""The distribution is what its metadata promises."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import pytest

import anarchon_dramatiq
import anarchon_tasks
from anarchon_tasks.errors import ConfigError

ROOT = Path(__file__).parents[2]
PACKAGES = ("anarchon_tasks", "anarchon_celery", "anarchon_dramatiq")
SOURCES = {
    "anarchon_tasks": ROOT / "anarchon_tasks",
    "anarchon_celery": ROOT / "integrations" / "anarchon_celery",
    "anarchon_dramatiq": ROOT / "integrations" / "anarchon_dramatiq",
}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a wheel that was built from this tree, without the network."""
    pytest.importorskip("build.__main__")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_the_version_is_that_of_the_distribution() -> None:
    """`__version__` is read from the installed metadata."""
    assert anarchon_tasks.__version__ == version("anarchon-tasks")


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The module's `__getattr__` refuses what it does not know."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        anarchon_tasks.nothing  # noqa: B018


def test_the_dramatiq_integration_says_that_it_is_not_there() -> None:
    """Every public name of the package raises a ConfigError that points to the changelog."""
    with pytest.raises(ConfigError, match=r"anarchon_dramatiq\.AnarchonMiddleware.*CHANGELOG"):
        anarchon_dramatiq.AnarchonMiddleware  # noqa: B018
    assert not hasattr(anarchon_dramatiq, "__wrapped__")


def test_all_is_the_union_of_the_extras(pyproject: dict[str, Any]) -> None:
    """The extra `all` brings exactly what the other extras bring."""
    extras: dict[str, list[str]] = dict(pyproject["project"]["optional-dependencies"])
    everything = extras.pop("all")
    assert everything == sorted({requirement for requirements in extras.values() for requirement in requirements})


def test_the_wheel_has_three_packages_and_nothing_else(wheel: list[str]) -> None:
    """No package called `integrations`, `tests` or `examples` is shipped."""
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_has_every_file_of_a_package(wheel: list[str], package: str) -> None:
    """Modules, the typing marker, SQL and Lua files are all there."""
    source = SOURCES[package]
    wanted = [p for suffix in ("*.py", "*.sql", "*.lua", "py.typed") for p in source.rglob(suffix)]
    assert (source / "py.typed") in wanted
    assert {f"{package}/{path.relative_to(source).as_posix()}" for path in wanted} <= set(wheel)


def test_the_core_imports_without_any_extra() -> None:
    """`import anarchon_tasks` loads no driver and no task framework."""
    heavy = {"celery", "dramatiq", "psycopg", "redis", "valkey"}
    code = f"import sys, anarchon_tasks; print(*sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("group", "name"), [("console_scripts", "anarchon"), ("celery.beat_schedulers", "anarchon")])
def test_an_entry_point_loads(group: str, name: str) -> None:
    """What the metadata names can be imported."""
    if group.startswith("celery."):
        pytest.importorskip("celery")
    (point,) = [p for p in distribution("anarchon-tasks").entry_points if (p.group, p.name) == (group, name)]
    assert callable(point.load())
