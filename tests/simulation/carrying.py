"""Deletes that follow the rows of a rewrite, in a model whose data files hold rows at no positions.

A row that others delete in a replaced file while it is rewritten is deleted in the new file that holds it now.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from icekeep.commit.changes.rewrites import Carried
from icekeep.commit.manifests import ChangedDeletes
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from simulation.client import Client
from simulation.model import Model
from simulation.world import LOCATION

if TYPE_CHECKING:
    from simulation.compaction_operations import Compact

Rows = frozenset[int]


class CarriedRows:
    """A `DeleteCarrier`: what the maintenance job's is for positions, with rows in their place.

    `written` names all delete files that any attempt has asked for.
    """

    def __init__(
        self,
        operation: "Compact",
        client: Client,
        visible: Mapping[str, Rows],
        applied: Mapping[str, Sequence[ManifestEntry]],
        added: Sequence[DataFile],
    ) -> None:
        """Args:
        visible: the rows of each replaced file that the new files hold.
        applied: the delete files that were applied to each.
        """
        self.written: frozenset[str] = frozenset()
        self._operation, self._client, self._model = operation, client, operation.model
        self._dropped = {path: self._model.rows[path] - rows for path, rows in visible.items()}
        self._applied = {path: _deleted_positions(self._model, path, applied[path]) for path in visible}
        self._born = {file.file_path: file for file in added}
        self._places = _places(visible, {path: self._model.rows[path] for path in self._born})
        self._files: dict[tuple[str, Rows, bool], DataFile] = {}
        self._attempts_count = 0

    def carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, noted: Callable[[str], None]
    ) -> Carried:
        self._attempts_count += 1
        moved: defaultdict[str, set[int]] = defaultdict(set)
        refusals = {}
        for path, one in sorted(changed.items()):
            deleted = _deleted_positions(self._model, path, one.deletes)
            needed = self._dropped[path] if one.lacks_keys else self._applied[path] if one.lacks_positions else Rows()
            if lost := needed - deleted:
                refusals[path] = f"rows {sorted(lost)} of {path!r}, which its rewrite left out, are back"
            for row in deleted - self._dropped[path]:
                moved[self._places[path, row]].add(row)
        seen = self._model.world.seen
        if refusals:
            seen["rewrites refused since rows that they left out are back"] += 1
            return Carried(refusals=refusals)
        seen["rewrites that carried deletes over"] += bool(moved)
        seen["rewrites that carried deletes over in a later attempt"] += bool(moved) and self._attempts_count > 1
        vectors = base.format_version > 2
        return Carried(tuple(self._file(path, Rows(moved[path]), vectors, noted) for path in sorted(moved)))

    def _file(self, path: str, rows: Rows, vectors: bool, noted: Callable[[str], None]) -> DataFile:
        key = path, rows, vectors
        if key not in self._files:
            location = f"{LOCATION}/data/{self._operation.number:03d}-carried-{len(self.written)}.parquet"
            self._model.deletes[location] = (path, rows)
            self.written |= {location}
            noted(location)
            with self._client.storage.write(location) as stream:
                stream.write(b"PAR1")
            form = {"file_format": "puffin", "content_offset": 4, "content_size_in_bytes": 40} if vectors else {}
            self._files[key] = DataFile(
                **{
                    "file_path": location,
                    "file_format": "PARQUET",
                    "spec_id": self._born[path].spec_id,
                    "partition": self._born[path].partition,
                    "record_count": len(rows),
                    "file_size_in_bytes": 4,
                    "content": FileContent.POSITION_DELETES,
                    "referenced_data_file": path,
                    **form,
                }
            )
        return self._files[key]


def _deleted_positions(model: Model, path: str, deletes: Iterable[ManifestEntry]) -> Rows:
    """The rows of a data file that deletes of positions delete in it."""
    found = (model.deletes[delete.data_file.file_path] for delete in deletes)
    return model.rows[path] & Rows().union(*(rows for target, rows in found if target == path))


def _places(visible: Mapping[str, Rows], added: Mapping[str, Rows]) -> dict[tuple[str, int], str]:
    """The new file of each row of each old one; a row that is in two of them is in two of the new ones."""
    where: defaultdict[int, list[str]] = defaultdict(list)
    for path, rows in sorted(added.items()):
        for row in rows:
            where[row].append(path)
    return {(path, row): where[row].pop() for path, rows in sorted(visible.items()) for row in sorted(rows)}
