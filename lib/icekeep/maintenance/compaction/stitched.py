"""Files that are put together byte for byte: the task, and what manifests say of its files.

Only these files' metrics are ever wanted by a compaction: they are read from the manifests a second time, since they are
too wide to be carried along for all candidates.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.decoding import from_msgpack
from icekeep.errors import ConflictError, UnsupportedError
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.options import write_options
from icekeep.formats.rewrite.copy_proof import rows_of_copy
from icekeep.formats.rewrite.copy_row_groups import stitch
from icekeep.formats.rewrite.moves import reported_moves, whole_pieces
from icekeep.formats.rewrite.rows import removed_on_failure
from icekeep.formats.rewrite.run import rewrite
from icekeep.formats.rewrite.task import RewriteOutcome, RewriteTask
from icekeep.maintenance.compaction.methods import GroupMethod
from icekeep.maintenance.compaction.plan import FileGroup
from icekeep.planning.entries import DecodedEntries, folded
from icekeep.planning.manifests import METRICS
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import DataFile
from icekeep.storage.base import Storage


class ColumnMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a data file that are of `planning.manifests.METRICS`; packed they take a fifth of the memory."""

    column_sizes: dict[int, int] | None = None
    value_counts: dict[int, int] | None = None
    null_value_counts: dict[int, int] | None = None
    nan_value_counts: dict[int, int] | None = None
    lower_bounds: dict[int, bytes] | None = None
    upper_bounds: dict[int, bytes] | None = None


Metrics = bytes
"""`ColumnMetrics`, as msgpack."""

STITCHED_FILES_A_JOB = 20_000
"""The metrics of so many files of a hundred columns take some hundred megabytes."""

_COLUMNS = frozenset({"file_path", *METRICS.names})


class StitchTask(msgspec.Struct, frozen=True, kw_only=True):
    """Files to put into one, and the task that encodes them anew where that turns out not to be allowed.

    Attributes:
        files: as their entries describe them, metrics included.
        rewrite: what encodes them anew.
        may_reencode: false where the user wants no file to be encoded anew.
    """

    files: tuple[DataFile, ...]
    rewrite: RewriteTask
    may_reencode: bool


class _PickedMetrics:
    """The metrics of the files at some paths; a `Fold`."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = pa.array(sorted(paths), pa.string())
        self.found: dict[str, Metrics] = {}

    def add(self, decoded: DecodedEntries) -> None:
        """Pick them out of some entries."""
        entries = decoded.entries
        chosen = entries.filter(pc.is_in(entries["file_path"], value_set=self._paths))
        for row in chosen.to_pylist():
            maps = {name: None if row[name] is None else dict(row[name]) for name in METRICS.names}
            self.found[row["file_path"]] = msgspec.msgpack.encode(ColumnMetrics(**maps))

    def merge(self, other: Self) -> None:
        """Take in what was picked elsewhere."""
        self.found.update(other.found)


def metrics_of(
    scan: Scan, spark: SparkSource, paths: Iterable[str], manifest_paths: Iterable[str]
) -> dict[str, Metrics]:
    """What the manifests of a scan say of the columns of some of its files, by path.

    Args:
        manifest_paths: where the files were found.
    """
    wanted, where = frozenset(paths), frozenset(manifest_paths)
    manifests = [manifest for manifest in scan.data.opened if manifest.manifest_path in where]
    picked = folded(scan.table.storage, spark, manifests, scan.wanted, _COLUMNS, partial(_PickedMetrics, wanted))
    missing = wanted - picked.found.keys()
    if missing:
        raise ConflictError(f"data file {min(missing)!r} was planned and is in no manifest")
    return picked.found


class MetricsInParts:
    """The metrics of a plan's files that are put together byte for byte: of all at once, or where they are many of some groups.

    Where they are many, manifests are read again for each part of them, so that the driver never holds all.
    """

    def __init__(
        self,
        groups: Sequence[FileGroup],
        methods: Mapping[int, GroupMethod],
        read: Callable[[Sequence[FileGroup]], Mapping[str, Metrics]],
    ) -> None:
        self._groups, self._read = groups, read
        self._are_few = sum(methods[group.number].stitched_files_count for group in groups) <= STITCHED_FILES_A_JOB
        self._all: Mapping[str, Metrics] | None = None
        self._lock = threading.Lock()

    def of(self, groups: Sequence[FileGroup]) -> Mapping[str, Metrics]:
        """By path, of the files of some groups at least; raises what reading manifests raises."""
        if not self._are_few:
            return self._read(groups)
        with self._lock:
            if self._all is None:
                self._all = self._read(self._groups)
            return self._all


def stitch_task(whole: RewriteTask, metrics: Mapping[str, Metrics], *, may_reencode: bool) -> StitchTask:
    """The task for the files of a rewrite of whole files without deletes.

    Args:
        metrics: by path (`metrics_of`).
    """
    files = tuple(
        DataFile(
            file_path=piece.location,
            file_format=piece.file_format,
            spec_id=piece.spec_id,
            partition=piece.partition,
            record_count=piece.record_count,
            file_size_in_bytes=piece.size_bytes,
            first_row_id=piece.first_row_id,
            **msgspec.structs.asdict(from_msgpack(metrics[piece.location], ColumnMetrics)),
        )
        for piece in whole.pieces
    )
    return StitchTask(files=files, rewrite=whole, may_reencode=may_reencode)


def run_stitch(task: StitchTask, storage: Storage) -> RewriteOutcome:
    """Put the files into one, or encode them anew if their footers have something against it.

    Raises:
        UnsupportedError: they have, and may not be encoded anew.
        MissingFileError, InvalidTableError: as `stitch` and `rewrite`.
    """
    told = task.rewrite
    options = write_options(told.properties, told.schema, told.sort_order)
    location = told.file_names().location(options.file_suffix, told.partition_path(task.files[0].partition))
    try:
        file = stitch(task.files, storage, location, schema=told.schema, modes=options.metrics_modes)
    except UnsupportedError:
        if not task.may_reencode:
            raise
        return rewrite(told, storage)
    with removed_on_failure([location], storage):
        moves = reported_moves(told, storage, whole_pieces(told), None)
        proved = rows_of_copy(told.pieces, file, storage) if told.verifies else None
    return RewriteOutcome(
        files=(file,),
        read_count=file.record_count,
        live_count=file.record_count,
        stitched_count=1,
        moves=moves,
        hash_in=proved,
        hash_out=proved,
        peak_bytes=peak_memory_bytes(),
    )
