"""Row ids: which rows of a version 3 table a commit numbers, and how readers work the numbers out (spec, "Row Lineage").

A snapshot takes its numbers from the table's `next-row-id`, its new manifests divide them, and a reader gives them to the
files of a manifest in order. So nothing that was written before a commit need be written again when the commit is retried.
"""

from collections.abc import Iterable

import msgspec

from icekeep.errors import IcekeepBug
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestFile, Status


def assign_row_ids(manifests: Iterable[ManifestFile], next_row_id: int) -> tuple[list[ManifestFile], int]:
    """Number the data manifests that have no `first_row_id`, in order; returns them and the table's next row id after them.

    A manifest is given room for all its live rows, since any of its files may turn out to have no id of its own.

    Raises:
        IcekeepBug: a manifest that is to be numbered has no row counts.

    Spec: "First Row ID Assignment".
    """
    numbered = []
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA and manifest.first_row_id is None:
            rows = (manifest.added_rows_count, manifest.existing_rows_count)
            if rows[0] is None or rows[1] is None:
                raise IcekeepBug(f"manifest {manifest.manifest_path!r} has no row counts; row ids cannot be assigned")
            manifest = msgspec.structs.replace(manifest, first_row_id=next_row_id)
            next_row_id += rows[0] + rows[1]
        numbered.append(manifest)
    return numbered, next_row_id


class RowIdInheritance:
    """Gives the files of one manifest, in order, the `first_row_id` that they leave null (spec, "First Row ID Inheritance").

    Where the manifest itself has none, as before an upgrade to version 3, its files have none. Deleted entries keep what
    they say, and use up no ids.
    """

    def __init__(self, manifest: ManifestFile) -> None:
        self._next = manifest.first_row_id

    def __call__(self, status: Status, file: DataFile) -> DataFile:
        if file.content is not FileContent.DATA or self._next is None:
            return file if file.first_row_id is None else msgspec.structs.replace(file, first_row_id=None)
        if status is Status.DELETED or file.first_row_id is not None:
            return file
        file = msgspec.structs.replace(file, first_row_id=self._next)
        self._next += file.record_count
        return file
