"""What deletes cost readers: which reach which data files, where both are few; else only what delete files say themselves."""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.health.files import DATA_COLUMNS, DataFold, DeleteFold, own_sizes
from icekeep.health.values import DeletesHealth
from icekeep.planning.deletes import EVERY_PAIR, Reaching, reaching
from icekeep.planning.entries import entries_schema
from icekeep.planning.manifests import SOLE_PATH
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata


def deletes_health(data: DataFold, deletes: DeleteFold, reached: Reaching | None) -> DeletesHealth:
    """The figures; those that need the pairs are `None` where `reached` is."""
    positions, equality, vectors = deletes.positions, deletes.equality, deletes.vectors
    deleted_count = _deleted_count(data, deletes, reached)
    found = DeletesHealth(
        position_delete_files_count=positions.files_count,
        position_delete_files_bytes=positions.bytes,
        position_delete_files_record_count=positions.record_count,
        equality_delete_files_count=equality.files_count,
        equality_delete_files_bytes=equality.bytes,
        equality_delete_files_record_count=equality.record_count,
        deletion_vectors_count=vectors.files_count,
        deletion_vectors_bytes=vectors.bytes,
        deletion_vectors_record_count=vectors.record_count,
        deleted_ratio=round(min(1.0, deleted_count / data.record_count), 4) if data.record_count else 0.0,
    )
    if not found.files_count:
        return msgspec.structs.replace(
            found,
            data_files_with_deletes_count=0,
            scan_read_bytes=0,
            mean_deletes=0.0,
            dangling_count=0,
            dangling_bytes=0,
        )
    if reached is None:
        return found
    sizes = own_sizes(reached.deletes)
    before = np.concatenate([[0], np.cumsum(sizes)])
    counts = reached.stops.astype(np.int64) - reached.starts
    idle = ~reached.reached
    return msgspec.structs.replace(
        found,
        data_files_with_deletes_count=int(np.count_nonzero(np.diff(reached.offsets))),
        scan_read_bytes=int((before[reached.stops] - before[reached.starts]).sum()),
        mean_deletes=round(int(counts.sum()) / data.files_count, 4) if data.files_count else 0.0,
        dangling_count=int(np.count_nonzero(idle)),
        dangling_bytes=int(sizes[idle].sum()),
    )


def _deleted_count(data: DataFold, deletes: DeleteFold, reached: Reaching | None) -> int:
    """Rows that deletes of positions delete, at most: what reaches nothing deletes none, and a file loses no more than it has."""
    if reached is None:
        return deletes.positions.record_count + deletes.vectors.record_count
    rows, found = data.rows(entries_schema(DATA_COLUMNS)), reached.deletes
    counts = np.minimum(reached.own_record_counts(rows["file_path"]), rows["record_count"].to_numpy())
    is_shared = pc.and_(
        pc.equal(found["content"], int(FileContent.POSITION_DELETES)),
        pc.and_(pc.is_null(found["referenced_data_file"]), pc.is_null(found[SOLE_PATH.name])),
    )
    shared = found["record_count"].to_numpy()[is_shared.to_numpy() & reached.used]
    return int(counts.clip(0).sum() + shared.clip(0).sum())


def reached_by(data: pa.Table, deletes: pa.Table, metadata: TableMetadata) -> Reaching | None:
    """Which delete files reach which data files; `None` where that is too many runs to hold.

    Raises:
        InvalidTableError: deletes contradict one another or the data.
    """
    return reaching(data, deletes, metadata.specs_by_id, EVERY_PAIR)
