"""What the tests of other projects ask of table maintenance, and which test here asks the same.

`tests/interop/peers/` has one YAML file for each of five suites. It lists the test methods that say something about maintenance,
by file, each with what it requires, in our words, and one verdict:

* `same`: a test here holds it (a path below `tests/`, with the name after `::`), or several;
* `better`: icekeep does more than that, as a page of the documentation says (`docs/PAGE.md#anchor`);
* `differs`: another choice, for the reason that is given, or that a page gives;
* `not_applicable`: it asks for what no maintenance has;
* `missing`: no test here holds it; the text names the gap.
"""

import ast
import fnmatch
import re
import subprocess
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "interop" / "peers"
VERDICTS = ("same", "better", "differs", "not_applicable", "missing")
Language = Literal["java", "rust", "python", "go"]

_TESTS = {
    "java": re.compile(
        r"^\s*@(?:Test|TestTemplate|ParameterizedTest|RepeatedTest)\b(?:(?!^\s*\}).)*?\bvoid\s+(\w+)\s*\(",
        re.MULTILINE | re.DOTALL,
    ),
    "rust": re.compile(
        r"^\s*#\[(?:\w+::)*test\b[^\n]*\n(?:\s*#\[[^\n]*\n)*\s*(?:pub(?:\([^)]*\))?\s+)?(?:async\s+)?fn\s+(\w+)",
        re.MULTILINE,
    ),
    "python": re.compile(r"^[ \t]*(?:async )?def (test_\w+)\(", re.MULTILINE),
    "go": re.compile(r"^func (?:\(\w+ \*?(\w+)\) )?(Test\w*)\(", re.MULTILINE),
}
"""How the declaration of a test looks; its groups, joined by a dot, are its name."""
_ALIKE = 0.7
"""From which ratio of `difflib` on a new name is taken for that of a test that is gone."""


class Method(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test of a peer, what it requires, and one of the verdicts."""

    requires: str
    same: str | list[str] | None = None
    better: str | None = None
    differs: str | None = None
    not_applicable: str | None = None
    missing: str | None = None

    @property
    def verdicts(self) -> list[str]:
        """Those that are given: one, in a right list."""
        return [verdict for verdict in VERDICTS if getattr(self, verdict) is not None]

    @property
    def tests(self) -> list[str]:
        """Our tests that hold it."""
        return [self.same] if isinstance(self.same, str) else self.same or []

    @property
    def reason(self) -> str:
        """The text of any verdict but `same`."""
        return self.better or self.differs or self.not_applicable or self.missing or ""


class PeerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of tests of a peer.

    `about` is a regular expression: of a file that tests much else, only those methods are looked at in whose text it is found.
    """

    methods: dict[str, Method]
    about: str | None = None


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tests of one peer. A `*` in a path stands for any directory, such as one that has a version in its name.

    `tags` is a regular expression of the names that its releases have, with the version as its group; a peer that tags none is
    compared by its main branch. `read` is the version that the list was made of. Files that match `watch` and are neither listed
    nor `passed_over` (with the reason) are new.
    """

    suite: str
    repository: str
    read: str
    language: Language
    watch: str
    files: dict[str, PeerFile]
    tags: str | None = None
    passed_over: dict[str, str] = {}

    def methods(self) -> Iterator[tuple[str, str, Method]]:
        """All, as file, name and method."""
        for path, file in self.files.items():
            for name, method in file.methods.items():
                yield path, name, method

    def counts(self) -> Counter[str]:
        """How many methods have each verdict."""
        return Counter(verdict for _, _, method in self.methods() for verdict in method.verdicts)


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The fast one is not in every build of PyYAML."""


class _UniqueKeys(_Loader):
    """Refuses a mapping in which a key appears twice, where YAML would let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        keys = [key.value for key, _ in node.value]
        if twice := [key for key, count in Counter(keys).items() if count > 1]:
            raise ValueError(
                f"{node.start_mark.name}, line {node.start_mark.line + 1}: {', '.join(twice)}: listed twice"
            )
        return super().construct_mapping(node, deep)


def read_suite(path: Path) -> Suite:
    """The list of a YAML file."""
    with path.open() as stream:
        return msgspec.convert(yaml.load(stream, _UniqueKeys), Suite)


@cache
def suites() -> dict[str, Suite]:
    """All lists, by the names of their files without the extension."""
    return {path.stem: read_suite(path) for path in sorted(LISTS.glob("*.yaml"))}


@cache
def named_tests(path: Path) -> frozenset[str]:
    """The names of the tests that a file here defines; those of a class have its name and `::` before them.

    Those of a text are the heads of its examples (`kit/examples.py`).
    """
    if path.suffix == ".txt":
        return frozenset(line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
    tree = ast.parse(path.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    methods = {
        f"{node.name}::{item.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef)
    }
    return frozenset(name for name in functions | methods if name.split("::")[-1].startswith("test_"))


def is_test(name: str) -> bool:
    """Whether `PATH::TEST`, with a path below `tests/`, is there."""
    path, _, test = name.partition("::")
    file = ROOT / "tests" / path
    return file.is_file() and test in named_tests(file)


def methods_in(text: str, language: Language) -> dict[str, str]:
    """The tests that a source declares, each with its text up to the next one."""
    found = list(_TESTS[language].finditer(text))
    ends = [*(one.start() for one in found), len(text)][1:]
    return {".".join(filter(None, one.groups())): text[one.start() : end] for one, end in zip(found, ends, strict=True)}


class Source(msgspec.Struct, frozen=True):
    """The files of a release of a peer, wherever it was unpacked from: paths, and a function that reads one."""

    paths: Sequence[str]
    read: Any

    def find(self, listed: str) -> str | None:
        """The path of the release that is the one of a list; of several, as of two versions of Spark, the newest.

        What lies before either path does not matter: archives have a directory around all, and some begin further down.
        """
        wanted = listed.split("/")[::-1]
        fits = [
            path
            for path in self.paths
            if all(map(fnmatch.fnmatchcase, path.split("/")[::-1], wanted)) and path.endswith(wanted[0])
        ]
        return max(fits, key=_by_numbers, default=None)


def _by_numbers(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def open_source(path: Path) -> Source:
    """The files of a checkout, of a git directory at its `HEAD`, or of an archive (tar or zip)."""
    if path.is_dir() and (path / "HEAD").is_file():
        git = ["git", "--git-dir", str(path)]
        names = subprocess.run(
            [*git, "ls-tree", "-r", "--name-only", "HEAD"], capture_output=True, text=True, check=True
        )
        return Source(
            names.stdout.splitlines(),
            lambda name: (
                subprocess.run([*git, "show", f"HEAD:{name}"], capture_output=True, text=True, check=True).stdout
            ),
        )
    if path.is_dir():
        names = [str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() and ".git" not in one.parts]
        return Source(names, lambda name: (path / name).read_text())
    if zipfile.is_zipfile(path):
        members = zipfile.ZipFile(path)
        return Source(members.namelist(), lambda name: members.read(name).decode())
    archive = tarfile.open(path)  # noqa: SIM115 - read for as long as the command runs
    files = {one.name: one for one in archive.getmembers() if one.isfile()}
    return Source([*files], lambda name: archive.extractfile(files[name]).read().decode())


class Change(msgspec.Struct, frozen=True, order=True):
    """A difference between a list and a release: `kind` is new, gone, renamed, moved, new file or gone file."""

    file: str
    kind: str
    name: str
    to: str = ""

    def __str__(self) -> str:
        """One line."""
        return f"{self.kind:<9} {self.file}{': ' if self.name else ''}{self.name}{f' -> {self.to}' if self.to else ''}"


def compare(suite: Suite, source: Source) -> list[Change]:
    """What a release has that the list has not, and the reverse."""
    gone: dict[str, list[str]] = {}
    new: dict[str, list[str]] = {}
    changes = []
    found = set()
    for listed, file in suite.files.items():
        path = source.find(listed)
        if path is None:
            changes.append(Change(listed, "gone file", ""))
            continue
        found.add(path)
        there = methods_in(source.read(path), suite.language)
        gone[listed] = [name for name in file.methods if name not in there]
        new[listed] = [
            name
            for name, text in there.items()
            if name not in file.methods and (file.about is None or re.search(file.about, text))
        ]
    changes += _paired(gone, new)
    for listed in suite.files:
        changes += [Change(listed, "gone", name) for name in gone.get(listed, ())]
        changes += [Change(listed, "new", name) for name in new.get(listed, ())]
    changes += [Change(path, "new file", "", f"{count} tests") for path, count in _new_files(suite, source, found)]
    return sorted(changes)


def _paired(gone: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> Iterator[Change]:
    """Tests that have another name in the same file or the same name in another one; they leave both mappings."""
    for file, names in gone.items():
        for name in [*names]:
            if other := next((path for path, there in new.items() if name in there), None):
                names.remove(name)
                new[other].remove(name)
                yield Change(file, "moved", name, other)
        likely = sorted(((_likeness(a, b), a, b) for a in names for b in new[file]), reverse=True)
        for ratio, name, other in likely:
            if ratio >= _ALIKE and name in names and other in new[file]:
                names.remove(name)
                new[file].remove(other)
                yield Change(file, "renamed", name, other)


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name.lower(), other.lower(), autojunk=False).ratio()


def _new_files(suite: Suite, source: Source, found: set[str]) -> Iterator[tuple[str, int]]:
    """Files that have tests and the names of maintenance, and that the list does not speak of, with how many tests they have."""
    known = {PurePosixPath(path).name for path in found}
    for path in source.paths:
        passed = any(fnmatch.fnmatchcase("/" + path, f"*/{pattern}") for pattern in suite.passed_over)
        if passed or PurePosixPath(path).name in known or not re.search(suite.watch, "/" + path):
            continue
        if count := len(methods_in(source.read(path), suite.language)):
            yield path, count
