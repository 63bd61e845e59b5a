"""Delete files of tables in memory: named and described, never written."""

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.storage.base import Storage
from kit.tables import data_file


def path_of(name: str) -> str:
    """Where the file of a name lies."""
    return data_file(name).file_path


def position_deletes(name: str, *named: str, partition: tuple[Any, ...] = (), **changes: Any) -> DataFile:
    """Positions of the named data files, one of each; bounds say between which two they lie."""
    paths = sorted(path_of(n).encode() for n in named)
    field_id = DELETE_FILE_PATH.field_id
    return replace(
        data_file(name, max(1, len(named)), partition),
        content=FileContent.POSITION_DELETES,
        lower_bounds={field_id: paths[0]} if paths else None,
        upper_bounds={field_id: paths[-1]} if paths else None,
        **changes,
    )


def deletion_vector(
    name: str, named: str, offset: int = 4, partition: tuple[Any, ...] = (), **changes: Any
) -> DataFile:
    """A vector of one deleted position of a data file, in the Puffin file of a name."""
    vector = {"content_offset": offset, "content_size_in_bytes": 40, "referenced_data_file": path_of(named), **changes}
    content = FileContent.POSITION_DELETES
    return replace(data_file(name, 1, partition), content=content, file_format="puffin", **vector)


def equality_deletes(name: str, *ids: int, partition: tuple[Any, ...] = (), **changes: Any) -> DataFile:
    """One row's values of the columns with some ids; by default the first."""
    changes = {"equality_ids": ids or (1,), **changes}
    return replace(data_file(name, 1, partition), content=FileContent.EQUALITY_DELETES, **changes)


class SaidToHold:
    """A `PathProof` of delete files that were never written: those of some names hold what their bounds say.

    `asked` has the names that anybody asked of.
    """

    asked: ClassVar[list[str]] = []

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked.clear()

    def __call__(self, storage: Storage, files: Sequence[DataFile]) -> list[DataFile]:
        self.asked.extend(file.file_path.rsplit("/", 1)[-1] for file in files)
        held = {path_of(name) for name in self.names}
        return [file for file in files if file.file_path in held]


def add_deletes(table: Table, *deletes: DataFile, named: tuple[str, ...] = (), **change: Any) -> Table:
    """The table after another commit that adds delete files."""
    delta = RowDelta(added_deletes=deletes, named=frozenset(map(path_of, named)), **change)
    return commit(table, delta, runtime=table.catalog.runtime).table
