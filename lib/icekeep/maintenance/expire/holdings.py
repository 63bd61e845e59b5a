"""What each reference keeps alive, to show which branch holds three terabytes.

A branch holds its head and every ancestor that is still there, a tag its snapshot. Snapshots are grouped by who holds them,
so that each manifest list is read once; a set of holders is a row of bits, a word for each 63 references, and a file is held
by all who hold one of the manifests that it is live in.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, SafetyError
from icekeep.planning.entries import (
    DecodeTask,
    EntryFilter,
    ReadBy,
    SpecFilter,
    chosen_reading,
    decode,
    in_threads,
    shares,
)
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.session import F, SparkSource, limits_of, started
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage, answer_each
from icekeep.storage.location_keys import location_keys

Words: TypeAlias = NDArray[np.int64]

_BITS = 63
_FEW_LISTS = 32
_COLUMNS = frozenset(("manifest_path", "file_path", "file_size_in_bytes"))


class RefHoldings(msgspec.Struct, frozen=True, kw_only=True):
    """What one reference leads to; of that `only_*` would be garbage without it. Bytes are those that metadata records.

    `ref` is `None` for the snapshots that no reference leads to and that are too young to go.
    """

    ref: str | None
    type: str
    snapshots_count: int
    files_count: int
    bytes: int
    only_files_count: int
    only_bytes: int


class _Held(msgspec.Struct, frozen=True):
    """How many files have exactly these holders, and their bytes."""

    holders: frozenset[int]
    files_count: int
    bytes: int


class _Task(msgspec.Struct, frozen=True):
    decode: DecodeTask
    paths: tuple[str, ...]
    masks: tuple[int, ...]
    words_count: int


def ref_holdings(metadata: TableMetadata, storage: Storage, spark: SparkSource) -> tuple[RefHoldings, ...]:
    """The data and delete files that each reference keeps alive, the one that holds most first.

    Raises:
        SafetyError: a manifest list or a manifest cannot be read whole.
    """
    refs = sorted(metadata.refs)
    groups = _groups(metadata, refs)
    try:
        held = _held(metadata, groups, len(refs) + 1, storage, spark)
    except InvalidTableError as error:
        raise SafetyError(f"what references keep alive cannot be determined: {error.message}", **error.facts) from error
    found = [
        _holdings(number, name, metadata, groups, held)
        for number, name in enumerate([*refs, None])
        if name is not None or any(number in holders for holders in groups)
    ]
    return tuple(sorted(found, key=lambda one: (-one.bytes, one.ref or "")))


def _groups(metadata: TableMetadata, refs: Sequence[str]) -> dict[frozenset[int], list[int]]:
    """The snapshots that have the same holders; the last number is that of nobody."""
    holders: dict[int, set[int]] = {}
    for number, name in enumerate(refs):
        ref = metadata.refs[name]
        for snapshot in metadata.ancestors(ref.snapshot_id):
            holders.setdefault(snapshot.snapshot_id, set()).add(number)
            if not ref.is_branch:
                break
    groups: dict[frozenset[int], list[int]] = {}
    for snapshot in metadata.snapshots:
        of = frozenset(holders.get(snapshot.snapshot_id, {len(refs)}))
        groups.setdefault(of, []).append(snapshot.snapshot_id)
    return groups


def _held(
    metadata: TableMetadata,
    groups: dict[frozenset[int], list[int]],
    count: int,
    storage: Storage,
    spark: SparkSource,
) -> list[_Held]:
    masks: dict[str, int] = {}
    manifests: dict[str, ManifestFile] = {}

    def listed(snapshot_ids: Sequence[int]) -> tuple[ManifestFile, ...]:
        snapshots = [metadata.snapshots_by_id[snapshot_id] for snapshot_id in snapshot_ids]
        return listed_manifests(storage, spark, snapshots, check=True, trust=True).manifests

    # Hundreds of tags are as many groups of one list each; those of many lists are read in threads, or tasks, of their own.
    several = answer_each(
        listed, [*groups.values()], lambda ids: id(ids) if len(ids) <= _FEW_LISTS else None, REQUESTS_AT_ONCE
    )
    for holders, listing in zip(groups, several, strict=True):
        mask = sum(1 << number for number in holders)
        for manifest in listing:
            path = manifest.manifest_path
            manifests.setdefault(path, manifest)
            masks[path] = masks.get(path, 0) | mask
    spec_ids = {m.partition_spec_id for m in manifests.values()}
    reading = chosen_reading(manifests.values(), limits_of(spark).ref_entries_count)
    whole = DecodeTask(
        manifests=tuple(manifests.values()),
        wanted=EntryFilter(specs={spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in spec_ids}),
        columns=_COLUMNS,
        storage=storage,
        decoder=reading.decoder,
    )
    words_count = -(-count // _BITS)
    if reading.by is ReadBy.DRIVER:
        tasks = _Task(whole, tuple(masks), tuple(masks.values()), words_count)
        batches = in_threads(whole, lambda share: [*_read(msgspec.structs.replace(tasks, decode=share))])
        return _grouped_here([batch for some in batches for batch in some], words_count)
    return _grouped_in_tasks(whole, masks, words_count, spark)


def _read(task: _Task) -> Iterator[pa.RecordBatch]:
    """The live files of some manifests: key, size, and the words of their holders."""
    paths = pa.array(task.paths, pa.string())
    words = [np.array([_word(mask, n) for mask in task.masks], np.int64) for n in range(task.words_count)]
    for decoded in decode(task.decode):
        rows = decoded.entries
        at = pc.index_in(rows["manifest_path"], paths).to_numpy()
        columns = [pa.array(location_keys(rows["file_path"]), pa.int64()), rows["file_size_in_bytes"]]
        columns += [pa.array(word[at]) for word in words]
        yield pa.record_batch(columns, schema=_schema(task.words_count))


def _word(mask: int, number: int) -> int:
    return (mask >> (_BITS * number)) & ((1 << _BITS) - 1)


def _schema(words_count: int) -> pa.Schema:
    names = ["key", "size", *(f"word{number}" for number in range(words_count))]
    return pa.schema([pa.field(name, pa.int64(), nullable=False) for name in names])


def _grouped_here(batches: Iterable[pa.RecordBatch], words_count: int) -> list[_Held]:
    rows = pa.Table.from_batches(batches, _schema(words_count))
    keys, first, place = np.unique(rows["key"].to_numpy(), return_index=True, return_inverse=True)
    held = np.zeros((len(keys), words_count), np.int64)
    for number in range(words_count):
        np.bitwise_or.at(held[:, number], place, rows[f"word{number}"].to_numpy())
    kinds, kind = np.unique(held, axis=0, return_inverse=True)
    counts = np.bincount(kind.ravel(), minlength=len(kinds))
    sums = np.zeros(len(kinds), np.int64)
    np.add.at(sums, kind.ravel(), rows["size"].to_numpy()[first])
    return [_Held(_holders(words), int(c), int(s)) for words, c, s in zip(kinds.tolist(), counts, sums, strict=True)]


def _grouped_in_tasks(whole: DecodeTask, masks: dict[str, int], words_count: int, spark: SparkSource) -> list[_Held]:
    """The same by Spark's aggregates, which join the rows of a file in each task before they are shuffled."""
    session = started(spark)
    tasks = []
    for share in shares(whole, session):
        paths = tuple(manifest.manifest_path for manifest in share.manifests)
        tasks.append(_Task(share, paths, tuple(masks[path] for path in paths), words_count))
    names = [f"word{number}" for number in range(words_count)]
    rows = dataframe_from_tasks(session, tasks, _read, _schema(words_count))
    files = rows.groupBy("key").agg(F.first("size").alias("size"), *(F.bit_or(name).alias(name) for name in names))
    sums = files.groupBy(*names).agg(F.count("*").alias("files"), F.sum("size").alias("bytes"))
    found = collected(sums, "counting what references keep")
    return [_Held(_holders([row[name] for name in names]), row["files"], row["bytes"]) for row in found]


def _holders(words: Sequence[int]) -> frozenset[int]:
    return frozenset(
        number * _BITS + bit for number, word in enumerate(words) for bit in range(_BITS) if word >> bit & 1
    )


def _holdings(
    number: int,
    name: str | None,
    metadata: TableMetadata,
    groups: dict[frozenset[int], list[int]],
    held: Sequence[_Held],
) -> RefHoldings:
    own = [one for one in held if number in one.holders]
    alone = [one for one in own if len(one.holders) == 1]
    return RefHoldings(
        ref=name,
        type="" if name is None else metadata.refs[name].type,
        snapshots_count=sum(len(ids) for holders, ids in groups.items() if number in holders),
        files_count=sum(one.files_count for one in own),
        bytes=sum(one.bytes for one in own),
        only_files_count=sum(one.files_count for one in alone),
        only_bytes=sum(one.bytes for one in alone),
    )
