"""Which releases of which packages icekeep needs, as its own package says, and whether those are there."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from platform import python_version_tuple

import msgspec

from icekeep.errors import brought_by
from icekeep.planning.spark.executors import UNKNOWN_VERSION
from icekeep.storage.locations import AZURE, GCS, HDFS, S3, is_location, parse_location, store_kind

SPARK_EXTRA = "spark"

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?", re.DOTALL)
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")
_EXTRA = re.compile(r"extra == [\"']([^\"']+)[\"']")
_MACHINE = re.compile(r"platform_machine == [\"']([^\"']+)[\"']")
_PYTHON_BELOW = re.compile(r"python_version < [\"']([^\"']+)[\"']")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")
_COMPARE: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_CATALOG_PACKAGES = {"rest": ("requests",), "glue": ("boto3",), "hive": ("thrift", "pyiceberg")}
_STORE_PACKAGES = {
    S3: ("s3", "obstore"),
    GCS: ("gcs", "obstore"),
    AZURE: ("azure", "obstore"),
    HDFS: ("hdfs", "hdfs-native"),
}


class Requirement(msgspec.Struct, frozen=True):
    """A package that is needed, between which releases, and the extra of icekeep that brings it, if one does."""

    package: str
    bounds: tuple[tuple[str, str], ...] = ()
    extra: str = ""

    @property
    def range(self) -> str:
        """The releases, as a person reads them."""
        return ",".join(f"{sign}{release}" for sign, release in sorted(self.bounds, reverse=True))

    def allows(self, version: str) -> bool:
        """Whether a release is one of those that are needed; what is no release number cannot be told."""
        found = _RELEASE.match(version)
        if found is None:
            return True
        return all(_COMPARE[sign](*_same_length(found[1], release)) for sign, release in self.bounds)

    def problem(self, version: str | None) -> str | None:
        """What is wrong with the installed version, `None` for no package, and what to do; `None` where nothing is."""
        remedy = f"pip install '{self.package}{self.range}'"
        if version is None:
            # An extra may bring more with it, such as a build of its own.
            return f"{self.package} is not installed; {brought_by(self.extra) if self.extra else remedy}"
        if version == UNKNOWN_VERSION or self.allows(version):
            return None
        return f"{self.package} is {version}, and icekeep needs {self.range}; {remedy}"


def parse_requirement(text: str, machine: str) -> Requirement | None:
    """A requirement of a package's metadata; `None` for one of machines of another kind, or of older Pythons than this.

    >>> parse_requirement('psycopg[binary]<4,>=3.2; extra == "postgres"', "x86_64")
    Requirement(package='psycopg', bounds=(('<', '4'), ('>=', '3.2')), extra='postgres')
    """
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        return None
    marker = match[3] or ""
    machines = _MACHINE.findall(marker)
    if machines and machine not in machines:
        return None
    below = _PYTHON_BELOW.search(marker)
    if below is not None and not _COMPARE["<"](*_same_length(".".join(python_version_tuple()[:2]), below[1])):
        return None
    extra = _EXTRA.search(marker)
    return Requirement(match[1], tuple(_BOUND.findall(match[2])), extra[1] if extra else "")


class Needs(msgspec.Struct, frozen=True):
    """What icekeep needs: Python between which releases, and packages."""

    python: Requirement
    packages: tuple[Requirement, ...]

    def of(self, extra: str, packages: Iterable[str] | None = None) -> tuple[Requirement, ...]:
        """The packages of an extra, or those of them that are named; of none for what is always needed."""
        wanted = None if packages is None else {*packages}
        return tuple(one for one in self.packages if one.extra == extra and (wanted is None or one.package in wanted))


def own_needs(machine: str) -> Needs | None:
    """What the metadata of the installed package says; `None` where icekeep runs from a zip or a checkout."""
    try:
        told = metadata("icekeep")
    except PackageNotFoundError:
        return None
    parsed = (parse_requirement(text, machine) for text in told.get_all("Requires-Dist") or ())
    python = Requirement("Python", tuple(_BOUND.findall(told["Requires-Python"] or "")))
    return Needs(python, tuple(one for one in parsed if one is not None))


def needed_extras(properties: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The extras that a catalog with these properties and its store take, and which packages of each."""
    kind, uri = properties.get("type", "").lower(), properties.get("uri", "")
    found: dict[str, tuple[str, ...]] = {}
    if kind in _CATALOG_PACKAGES:
        found["catalogs"] = _CATALOG_PACKAGES[kind]
    if kind in ("sql", "jdbc") and uri.removeprefix("jdbc:").startswith("postgres"):
        found["postgres"] = ("psycopg",)
    warehouse = properties.get("warehouse", "")
    if is_location(warehouse):
        store = _STORE_PACKAGES.get(store_kind(parse_location(warehouse).scheme))
        if store is not None:
            found[store[0]] = (store[1],)
    return found


def _same_length(left: str, right: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of releases to compare: 4.0 is as new as 4."""
    parts = [[int(part) for part in text.split(".")] for text in (left, right)]
    length = max(map(len, parts))
    one, other = (tuple(part + [0] * (length - len(part))) for part in parts)
    return one, other
