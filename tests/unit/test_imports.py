"""The layers: what each package may import, and who may look at the environment."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BELOW = {
    "pipelines": {"pipelines"},
    "actors": {"pipelines", "actors"},
    "gateway": {"pipelines", "actors", "gateway"},
    "cluster": {"pipelines", "actors", "gateway", "cluster"},
}
NEVER = {
    "pipelines": {"ray", "websockets", "starlette", "uvicorn", "os", "time", "uuid", "socket"}
    | {"sqlalchemy", "pathlib", "subprocess", "threading"},
    "actors": {"websockets", "starlette", "uvicorn"},
    "gateway": {"sqlalchemy", "xllamacpp"},
    "cluster": set(),
}
DATABASE = {
    "background_reading",
    "background_records",
    "database",
    "database_postgres",
    "fenced_writer",
    "ledger",
    "retention",
    "stored_conversations",
    "stored_responses",
}
FILES = sorted(file for package in BELOW for file in (ROOT / package).rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_imports_only_what_its_package_may(file: Path) -> None:
    package = file.relative_to(ROOT).parts[0]
    for name in imported(file):
        top, _, rest = name.partition(".")
        if top == "turnwire":
            assert rest.split(".")[0] in BELOW[package], f"{name}: imports point down only"
        assert top not in NEVER[package], f"{name} has no place in {package}/"
        if package == "actors" and top == "sqlalchemy":
            known = file.stem in DATABASE or file.stem.endswith(("schema", "rows"))
            assert known, "only the database modules know the database library"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_cluster_looks_at_the_environment(file: Path) -> None:
    looks = {"os.environ", "os.environb", "os.getenv", "os.putenv"}
    names = set(imported(file)) | {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert file.relative_to(ROOT).parts[0] == "cluster" or not names & looks


def test_the_table_covers_all_packages_of_the_distribution() -> None:
    linked = {path.name for path in (ROOT / "src" / "turnwire").iterdir() if path.is_symlink()}
    assert linked == set(BELOW)
    assert {file.relative_to(ROOT).parts[0] for file in FILES} == linked
