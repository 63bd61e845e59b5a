"""Equality delete files: whether they can be read (413), have the columns that they delete by (420), and their count (415)."""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, first_line
from icekeep.formats.arrow.schema import field_ids, has_ids
from icekeep.formats.deletes.read import BATCH_ROWS, DELETE_FILE, delete_source
from icekeep.formats.reader import identified, open_reader
from icekeep.maintenance.checking.deletes.claims import Claim, Telling
from icekeep.maintenance.checking.deletes.positions import DELETE_FILE_UNREADABLE
from icekeep.maintenance.checking.deletes.vectors import DELETED_COUNT_WRONG
from icekeep.maintenance.checking.faults import Tally
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import NameMapping
from icekeep.storage.base import Storage

EQUALITY_COLUMN_MISSING = 420


class EqualityCheck(msgspec.Struct, frozen=True):
    """Holds one equality delete file after the other against its entries; `name_mapping` is the table's."""

    storage: Storage
    telling: Telling
    name_mapping: NameMapping | None

    def check(self, claims: Sequence[Claim], tally: Tally) -> None:
        """Tell the faults of a file of which this is all that is said; one that is not there has none.

        Raises:
            TryAgainError: the store is out of reach.
        """
        first = claims[0]
        ids = {field_id for claim in claims for field_id in claim.row["equality_ids"] or ()}
        try:
            count, found = self._read(first, ids)
        except MissingFileError:
            return
        except InvalidTableError as error:
            self.telling.fault(tally, DELETE_FILE_UNREADABLE, first, first_line(error))
            return
        except UnsupportedError as error:
            tally.gap(f"delete file {first.path!r}", first_line(error))
            return
        for claim in claims:
            recorded, wanted = claim.row["record_count"], claim.row["equality_ids"] or []
            if count != recorded:
                detail = f"it has {count} rows where its entry says {recorded}"
                self.telling.fault(tally, DELETED_COUNT_WRONG, claim, detail, recorded=recorded, found=count)
            if missing := sorted({*wanted} - found):
                detail = f"it has no column with field id {missing[0]}, which its entry has among the equality_ids"
                self.telling.fault(
                    tally, EQUALITY_COLUMN_MISSING, claim, detail, recorded=[*wanted], found=sorted(found)
                )

    def _read(self, claim: Claim, ids: set[int]) -> tuple[int, set[int]]:
        """How many rows the file has, all of which are read in the columns that it deletes by, and the ids of its columns."""
        with open_reader(self.storage, claim.path, claim.row["file_format"], DELETE_FILE) as reader:
            content = FileContent.EQUALITY_DELETES
            source = delete_source(claim.path, claim.row["file_format"], content, self.name_mapping)
            schema = identified(reader.schema, source)
            if not has_ids(schema):
                raise UnsupportedError("it has no field ids, and the table no name mapping for it")
            names = [field.name for field in schema if field_ids(pa.schema([field])) & ids]
            count = sum(table.num_rows for _, table in reader.tables(names, None, (), BATCH_ROWS))
            return count, field_ids(schema)
