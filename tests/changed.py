"""Print the test files whose imports lead to what has changed since a commit: `make changed SINCE=main`.

A test file is named if it, or a helper that it imports, has changed; or if it imports a module of icekeep that has changed, or
imports one that has, or starts Python as a process, which may import anything. Files that are no modules (configuration, Java,
README) lead to the tests that speak of them by name, those of a folder in `kit` to the tests that speak of the folder. A helper
that was deleted leads to nothing: what imports it has changed, or fails when it is collected.
"""

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
TESTS, LIB = ROOT / "tests", ROOT / "lib"
FOR_INTEROP = (
    ".ci/java/",
    ".ci/flink/",
    ".ci/trino/",
    ".ci/requirements-java.lock",
    ".ci/requirements-trino.lock",
    ".ci/requirements-airflow.lock",
    ".ci/helm/",
    ".ci/requirements-schedulers.lock",
)
"""What the judges are made of."""
FOR_ALL = {"pyproject.toml", "tests/conftest.py", ".ci/requirements.lock"}
"""What no test can do without."""
STARTS_PYTHON = "sys.executable"
LEFT_OUT = TESTS / "cluster"
"""Needs an environment of its own, and longer than the others together: `make cluster`."""


def changed_since(commit: str) -> set[str]:
    """Paths in the work tree that differ from the commit, those that git does not know yet among them."""
    told = _git("diff", "--name-only", commit, "--") + _git("ls-files", "--others", "--exclude-standard")
    return {line for line in told.splitlines() if line}


def affected(changed: set[str], files: Sequence[Path] = ()) -> list[str]:
    """The files of these that lead to something of this, sorted; by default of all test files."""
    files = files or sorted(file for file in TESTS.rglob("test_*.py") if LEFT_OUT not in file.parents)
    if changed & FOR_ALL:
        return [_name(file) for file in files]
    modules = _modules(changed)
    others = [path for path in changed if not (path.endswith(".py") and _is_imported(Path(path)))]
    folders = {Path(path).parent for path in changed if path.endswith("/conftest.py")}
    if any(path.startswith(FOR_INTEROP) for path in changed):
        folders.add(Path("tests/interop"))
    return [
        _name(file)
        for file in files
        if any(ROOT / folder in file.parents for folder in folders) or _leads_to(file, changed, modules, others)
    ]


def _leads_to(file: Path, changed: set[str], modules: set[str], others: Iterable[str]) -> bool:
    for read in _own_files(file):
        text = _text(read)
        if _name(read) in changed or not modules.isdisjoint(_imports(read)):
            return True
        # This file names what starts Python, and starts none.
        if modules and STARTS_PYTHON in text and read != Path(__file__):
            return True
        if any(name in text for path in others for name in _spoken_of(Path(path))):
            return True
    return False


def _is_imported(path: Path) -> bool:
    """Whether an import is all that leads to it: a helper may be started as a process too, by its name."""
    return path.parts[0] == "lib" or path.name.startswith(("test_", "conftest"))


def _spoken_of(path: Path) -> Iterator[str]:
    # A name without a dot, such as `run`, is a word of any text.
    yield path.name if "." in path.name else f'"{path.name}"'
    if path.parts[0] != "tests":
        yield f'"{path.parts[0]}"'
    if path.parent.parent == Path("tests/kit"):
        yield path.parent.name


def _modules(changed: set[str]) -> set[str]:
    """The modules of icekeep that have changed, and all that import them, whoever else between."""
    graph = _graph()
    found: set[str] = set()
    for path in changed:
        if path.startswith("lib/icekeep/") and path.endswith(".py"):
            module = ".".join(Path(path).relative_to("lib").with_suffix("").parts).removesuffix(".__init__")
            found.add(module)
            if module in graph.modules:
                found |= graph.find_downstream_modules(module)
    return found


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("icekeep", cache_dir=None)


@cache
def _own_files(file: Path) -> frozenset[Path]:
    """The file, the fixtures of its folders and the helpers below `tests` that these import, with theirs."""
    # What all tests have is no reason to run one of them.
    folders = [folder for folder in file.parents if folder.is_relative_to(TESTS) and folder != TESTS]
    waiting = [file, *(path for folder in folders if (path := folder / "conftest.py").exists())]
    found = {*waiting}
    while waiting:
        for module in _imports(waiting.pop()):
            for path in (TESTS / f"{module.replace('.', '/')}.py", TESTS / module.replace(".", "/") / "__init__.py"):
                if path.exists() and path not in found:
                    found.add(path)
                    waiting.append(path)
    return frozenset(found)


@cache
def _imports(file: Path) -> frozenset[str]:
    """The modules that a file imports anywhere; of `from a import b` both `a` and `a.b`, since `b` may be a module."""
    return frozenset(_imported(ast.parse(_text(file))))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _text(file: Path) -> str:
    return file.read_text("utf-8")


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="a commit, branch or tag that git knows")
    options = parser.parse_args()
    sys.path.insert(0, str(LIB))
    try:
        changed = changed_since(options.commit)
    except subprocess.CalledProcessError:
        print(f"git knows no commit {options.commit!r}: make changed SINCE=<commit, branch or tag>", file=sys.stderr)
        return 2
    print("\n".join(affected(changed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
