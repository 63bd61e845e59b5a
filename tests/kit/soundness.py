"""Whether all tables below a directory are sound, whoever wrote them: each is checked down to its rows by its newest metadata."""

import re
from collections.abc import Iterator
from pathlib import Path

from icekeep.catalog.open import open_catalog
from icekeep.errors import IcekeepError
from icekeep.maintenance.check.job import CheckResult, check
from kit.no_spark import no_spark

_VERSION = re.compile(r"^(?:v(\d+)|(\d+)-.*)(?:\.gz|\.zstd)?\.metadata\.json$|^v(\d+)\.gz\.metadata\.json$")


def newest_metadata(directory: Path) -> Iterator[Path]:
    """The newest metadata file of each table below a directory."""
    newest: dict[Path, tuple[int, int, Path]] = {}
    for path in directory.rglob("*.metadata.json"):
        match = _VERSION.match(path.name)
        # What was moved aside is of no table any more.
        if match is None or any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        version = int(next(filter(None, match.groups())))
        key = (version, path.stat().st_mtime_ns, path)
        newest[path.parent] = max(newest.get(path.parent, key), key)
    for _, _, path in newest.values():
        yield path


def checks_below(directory: Path) -> Iterator[tuple[Path, CheckResult]]:
    """What the check says of each table below a directory that loads."""
    catalog = open_catalog("sound", {"type": "sql", "uri": "sqlite:///:memory:", "warehouse": directory.as_uri()})
    catalog.create_namespace(("db",))
    for number, path in enumerate(newest_metadata(directory)):
        try:
            table = catalog.register_table(("db", f"t{number}"), path.as_uri())
        except IcekeepError:
            continue
        yield path, check(table, no_spark, deep=True)
