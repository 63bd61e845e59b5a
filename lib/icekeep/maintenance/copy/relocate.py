"""Writing the files of a table that hold paths, for another prefix: deletes first, then manifests, then the lists of them.

Each of them says how long the ones before it are. Small files, by threads of this process; where there are many, by Spark tasks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from icekeep.catalog.metadata_files import encode
from icekeep.errors import InvalidTableError
from icekeep.events import Listener, StepFinished, StepStarted
from icekeep.formats.deletes.relocate import holds_relocated_deletes, write_relocated_deletes
from icekeep.maintenance.copy.files import CopiedTable
from icekeep.maintenance.copy.placing import put, taken
from icekeep.planning.entries import threads_count
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.spec.collections import cut_evenly
from icekeep.spec.manifests.structs import DataFile, ManifestFile
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.relocation import PathChange, relocated_manifest, relocated_manifest_list, same_records
from icekeep.spec.snapshots import Snapshot
from icekeep.spelling import counted
from icekeep.storage.base import Storage

P = TypeVar("P")
R = TypeVar("R")

_TASKS_COUNT = 1_000


class RelocatedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: paths at the source."""

    deletes: tuple[str, ...]
    manifests: tuple[str, ...]
    manifest_lists: tuple[str, ...]


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks need; can be pickled.

    Attributes:
        change: of the paths in the files.
        named: of the data files that deletes name.
        placing: of the files themselves: to the target, or to where they are staged.
        known: sizes or lengths that were written before, by path at the source.
    """

    storage: Storage
    target: Storage
    change: PathChange
    named: PathChange
    placing: PathChange
    known: Mapping[str, int] = {}


def write_relocated(
    copied: CopiedTable, storage: Storage, target: Storage, placing: PathChange, spark: SparkSource, listener: Listener
) -> RelocatedFiles:
    """Write the delete files, manifests and manifest lists of a copy.

    Args:
        target: one of `WholeFiles`.
        placing: where the files are put, by their paths at the source.

    Raises:
        SafetyError: one of the names is taken by another file.
        InvalidTableError, MissingFileError: a file of the source cannot be read whole.
    """
    work = _Work(storage=storage, target=target, change=copied.change, named=copied.named, placing=placing)
    sizes = dict(copied.sizes)
    sizes |= _each("rewriting delete files", copied.deletes, _write_deletes, work, spark, listener)
    work = msgspec.structs.replace(work, known=sizes)
    lengths = dict(copied.lengths)
    lengths |= _each("rewriting manifests", copied.manifests, _write_manifest, work, spark, listener)
    work = msgspec.structs.replace(work, known=lengths)
    snapshots = [one for one in copied.snapshots if one.manifest_list is not None]
    lists = _each("rewriting manifest lists", snapshots, _write_list, work, spark, listener)
    return RelocatedFiles(
        deletes=tuple(file.file_path for file in copied.deletes),
        manifests=tuple(one.manifest_path for one in copied.manifests),
        manifest_lists=tuple(lists),
    )


def put_metadata(metadata: TableMetadata, target: Storage, location: str) -> None:
    """Write a metadata file; raises `SafetyError` where another file has the name."""

    def is_same(data: bytes) -> bool:
        try:
            return parse_metadata(data, location) == metadata
        except InvalidTableError:
            return False

    put(target, location, encode(metadata), is_same)


def _each(
    step: str,
    items: Sequence[P],
    write: Callable[[P, _Work], tuple[str, int]],
    work: _Work,
    spark: SparkSource,
    listener: Listener,
) -> dict[str, int]:
    """What `write` answers for each: the path at the source, and how long the new file is."""
    if not items:
        return {}
    listener.on(StepStarted(step, len(items), "files"))
    is_few = len(items) <= limits_of(spark).commit_manifests_count
    session = None if is_few else started(spark)
    payloads = [(write, tuple(some)) for some in cut_evenly(items, lambda _: 1.0, min(len(items), _TASKS_COUNT))]
    threads = threads_count([work.placing.source, work.placing.target])
    answers = all_results(run_tasks(session, payloads, _write_some, work, step=step, threads=threads))
    listener.on(StepFinished(step, counted(len(items), "files")))
    return {path: length for some in answers for path, length in some}


def _write_some(
    payload: tuple[Callable[[Any, _Work], tuple[str, int]], Iterable[Any]], work: _Work
) -> list[tuple[str, int]]:
    write, items = payload
    return [write(item, work) for item in items]


def _write_deletes(file: DataFile, work: _Work) -> tuple[str, int]:
    to = work.placing.path(file.file_path)
    try:
        return file.file_path, write_relocated_deletes(work.storage, file, work.named, work.target, to)
    except FileExistsError:
        info = work.target.head(to)
        if info is None or not holds_relocated_deletes(work.storage, file, work.named, work.target, to):
            raise taken(to) from None
        return file.file_path, info.size_bytes


def _write_manifest(manifest: ManifestFile, work: _Work) -> tuple[str, int]:
    path = manifest.manifest_path
    data = relocated_manifest(
        work.storage.read(path, manifest.manifest_length), manifest, work.change, work.named, work.known
    )
    return path, _put_avro(path, data, work)


def _write_list(snapshot: Snapshot, work: _Work) -> tuple[str, int]:
    path = snapshot.manifest_list
    assert path is not None
    return path, _put_avro(path, relocated_manifest_list(work.storage.read(path), path, work.change, work.known), work)


def _put_avro(path: str, data: bytes, work: _Work) -> int:
    to = work.placing.path(path)

    def is_same(there: bytes) -> bool:
        try:
            return same_records(data, there, to)
        except InvalidTableError:
            return False

    return put(work.target, to, data, is_same)
