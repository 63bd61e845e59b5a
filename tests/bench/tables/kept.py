"""Tables that benchmarks keep: each is made once, in a directory of its own, and used again."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.tables import copies
from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.open import open_catalog

NAMESPACE = "db"
IDENTIFIER = (NAMESPACE, "kept")


class Kept(msgspec.Struct, frozen=True):
    """A table in a warehouse of its own, in the layout of Iceberg's HadoopCatalog.

    Attributes:
        shape: what was made: a value with a `name` and, as `read`, patterns of the files that a benchmark reads.
    """

    shape: Any
    directory: Path

    @property
    def name(self) -> str:
        """Its name in the catalog."""
        return ".".join(IDENTIFIER)

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    @property
    def catalog(self) -> Catalog:
        return hadoop_catalog(self.warehouse)

    @property
    def path(self) -> Path:
        return self.warehouse.joinpath(*IDENTIFIER)

    @property
    def pristine(self) -> Path:
        """The same files under second names, where benchmarks work on the table itself."""
        return self.directory / "pristine"

    @property
    def mark(self) -> Path:
        """A file that is there when the table is whole."""
        return self.directory / "made.json"

    @property
    def facts(self) -> dict[str, int]:
        """What whoever made the table knows of it."""
        return dict(msgspec.json.decode(self.mark.read_bytes()))

    def load(self) -> Table:
        return self.catalog.load(IDENTIFIER)


def hadoop_catalog(warehouse: Path) -> Catalog:
    return open_catalog("bench", {"type": "hadoop", "warehouse": warehouse.as_uri()})


def kept(shape: Any, cache: Path) -> Kept:
    """Where a table of this shape is or will be."""
    return Kept(shape, (cache / shape.name).absolute())


def made(shape: Any, cache: Path) -> Kept:
    """The table, made if it is not there yet, and what is read of it in the page cache."""
    table = kept(shape, cache)
    if not table.mark.exists():
        # In a process of its own: the memory that it takes is nobody's here.
        command = [sys.executable, str(Path(__file__).with_name("make.py")), msgspec.json.encode(shape).decode()]
        subprocess.run([*command, str(cache)], check=True)
    for pattern in shape.read:
        for path in table.directory.glob(f"warehouse/**/{pattern}"):
            path.read_bytes()
    return table


def make_anew(table: Kept, make: Callable[[Kept], Mapping[str, int]]) -> None:
    """Make a table, whatever is there of an earlier attempt."""
    shutil.rmtree(table.directory, ignore_errors=True)
    table.directory.mkdir(parents=True)
    facts = make(table)
    if table.shape.is_restored:
        copies.take(table.path, table.pristine)
    table.mark.write_bytes(msgspec.json.encode(facts))
