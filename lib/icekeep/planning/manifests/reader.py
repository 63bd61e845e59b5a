"""One manifest -> Arrow record batches of its entries, in order.

What an entry means is said once, in `spec.manifests.decode`; here the same is worked out for whole batches that DataFusion
decoded, found by field id through the file's own schema. Whatever looks wrong there, or is beyond DataFusion, is read
again by fastavro, entry by entry: that gives the entries, or the exact error.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

import pyarrow as pa

from icekeep.commit.manifests import refuse_encrypted_manifest
from icekeep.errors import InvalidTableError
from icekeep.formats.datafusion_package import datafusion_package
from icekeep.planning.manifests.avro_decoder import BATCH_RECORDS, NotReadError, read_batches, read_together
from icekeep.planning.manifests.column_memory import Columns, KnownColumns, copied
from icekeep.planning.manifests.entry_columns import StoredColumns, StoredEntries
from icekeep.planning.manifests.entry_schema import ENTRIES, STORED
from icekeep.planning.manifests.partition_columns import partition_array, partition_arrow_type
from icekeep.planning.slow_reads import note_slow_read
from icekeep.spec.manifests.decode import open_manifest, read_manifest
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

_ENTRY_ATTRIBUTES = frozenset(ManifestEntry.__struct_fields__)


class ManifestDecoder(StrEnum):
    """What decodes the Avro files that manifests are."""

    DATAFUSION = "datafusion"
    FASTAVRO = "fastavro"


def chosen_decoder() -> tuple[ManifestDecoder, str]:
    """The fastest decoder that is installed here, and the reason in words."""
    try:
        datafusion = datafusion_package()
    except ModuleNotFoundError as error:
        if error.name != "datafusion":
            return ManifestDecoder.FASTAVRO, f"package datafusion cannot be imported ({error})"
        return ManifestDecoder.FASTAVRO, "package datafusion is not installed"
    except ImportError as error:
        return ManifestDecoder.FASTAVRO, f"package datafusion cannot be imported ({error})"
    return ManifestDecoder.DATAFUSION, f"package datafusion {datafusion.__version__} is installed"


def batch_schema(columns: Collection[str], partition: StructType) -> pa.Schema:
    """The wanted columns: the path of the manifest, then those of `STORED`, and last the partition."""
    fields = [field for field in (ENTRIES.field("manifest_path"), *STORED) if field.name in columns]
    if "partition" in columns:
        fields.append(pa.field("partition", partition_arrow_type(partition), nullable=False))
    return pa.schema(fields)


def read_manifest_batches(
    manifest: ManifestFile,
    partition: StructType,
    storage: Storage,
    columns: Collection[str],
    *,
    decoder: ManifestDecoder,
    batch_records: int = BATCH_RECORDS,
    slow: Callable[[str, Exception], None] = note_slow_read,
) -> Iterator[pa.RecordBatch]:
    """Every entry of a manifest, deleted ones too, with inherited ids and numbers filled in.

    A file that is not whole may show only after its last entry: nothing may be concluded from batches before that.

    Args:
        manifest: its row of the manifest list.
        partition: the partition type of its spec.
        storage: where it is.
        columns: which columns of `entry_schema.STORED` are wanted, "manifest_path" and "partition".
        decoder: fastavro serves as well where DataFusion cannot.
        batch_records: a batch has about so many entries.
        slow: is told the location, and why, where fastavro serves instead.

    Raises:
        InvalidTableError: as `spec.manifests.decode.read_manifest`; or a number is beyond what its column can hold.
        MissingFileError: there is no such manifest.
        UnsupportedError: the manifest is encrypted.
    """
    location = manifest.manifest_path
    refuse_encrypted_manifest(manifest)
    data = storage.read(location)
    schema = batch_schema(columns, partition)
    read_count, reason = 0, None
    if decoder is ManifestDecoder.DATAFUSION:
        try:
            header, _ = open_manifest(data, manifest)
            known = StoredColumns(header.metadata["avro.schema"], partition, columns)
            stored = StoredEntries(known, [manifest], schema)
            for batch, _ in read_batches(data, header, known.layout, batch_records):
                found = stored.of(batch, [batch.num_rows])
                yield found
                read_count += found.num_rows
            stored.check_counts()
            return
        except NotReadError as error:
            reason = error
    _, entries = read_manifest(data, manifest, partition)
    rest = islice(entries, read_count, None)
    while chunk := [*islice(rest, batch_records)]:
        yield batch_of_entries(chunk, schema, partition, location)
    if reason is not None:
        # It is whole, so it was not the file that DataFusion failed on.
        slow(location, reason)


def read_manifests(
    manifests: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Collection[str],
    *,
    decoder: ManifestDecoder,
    slow: Callable[[str, Exception], None] = note_slow_read,
) -> Iterator[pa.RecordBatch]:
    """The same of several manifests of one spec and content, in order; small ones are decoded together.

    What there is to do for each batch, whatever its size, is as much as for hundreds of entries.
    """
    # Of thousands of manifests most have the same schema, to the letter.
    known: dict[bytes, StoredColumns] = {}
    for bundle in bundles(manifests):
        batch = None
        if len(bundle) > 1 and decoder is ManifestDecoder.DATAFUSION:
            batch = _read_together(bundle, partition, storage, columns, known)
        if batch is not None:
            yield batch
            continue
        for manifest in bundle:
            yield from read_manifest_batches(manifest, partition, storage, columns, decoder=decoder, slow=slow)


def read_through(
    known: KnownColumns,
    manifests: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Columns,
    *,
    decoder: ManifestDecoder,
    slow: Callable[[str, Exception], None] = note_slow_read,
) -> Iterator[pa.RecordBatch]:
    """As `read_manifests`, but what is known is not read, and what is read is known from then on.

    What had to be read in the slow way is read so each time, and told.
    """
    told: list[str] = []

    def slow_here(location: str, error: Exception) -> None:
        told.append(location)
        slow(location, error)

    for stretch in known.stretches(manifests, partition, columns):
        if stretch.batches is not None:
            yield from stretch.batches
            continue
        for bundle in bundles(stretch.manifests):
            held = []
            for whole in read_manifests(bundle, partition, storage, columns, decoder=decoder, slow=slow_here):
                batch = copied(whole, columns)
                held.append(batch)
                yield batch
            if held and not told:
                _keep(known, bundle, partition, columns, held)
            told.clear()


def _keep(
    known: KnownColumns,
    bundle: Sequence[ManifestFile],
    partition: StructType,
    columns: Columns,
    batches: list[pa.RecordBatch],
) -> None:
    """Keep what was read of manifests, all to the end; of those that go together their lists say how many entries they have."""
    if len(bundle) == 1:
        lengths = [sum(batch.num_rows for batch in batches)]
    else:
        lengths = [(one.live_files_count or 0) + (one.deleted_files_count or 0) for one in bundle]
        batches = batches if len(batches) == 1 else [pa.concat_batches(batches)]
    known.keep(bundle, lengths, partition, columns, batches)


def bundles(manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Neighbours that together are about a batch; each that does not say how many entries it has, or is encrypted, alone."""
    bundle: list[ManifestFile] = []
    room = BATCH_RECORDS
    for manifest in manifests:
        counts = (manifest.live_files_count, manifest.deleted_files_count)
        count = BATCH_RECORDS if None in counts or manifest.key_metadata is not None else sum(c or 0 for c in counts)
        if bundle and count > room:
            yield bundle
            bundle, room = [], BATCH_RECORDS
        bundle.append(manifest)
        room -= count
    if bundle:
        yield bundle


def _read_together(
    bundle: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Collection[str],
    known: dict[bytes, StoredColumns],
) -> pa.RecordBatch | None:
    """The entries of small manifests as one batch; `None` where that is not possible, or one of them needs a closer look."""
    files = []
    for manifest in bundle:
        data = storage.read(manifest.manifest_path)
        files.append((data, open_manifest(data, manifest)[0]))
    first, *others = {header.metadata["avro.schema"] for _, header in files}
    if others:
        return None
    try:
        if first not in known:
            known[first] = StoredColumns(first, partition, columns)
        stored = StoredEntries(known[first], bundle, batch_schema(columns, partition))
        (batch, _), lengths = read_together(files, known[first].layout)
        found = stored.of(batch, lengths)
        stored.check_counts()
    except NotReadError:
        # One by one they give their entries, or the error that is theirs.
        return None
    return found


def batch_of_entries(
    entries: list[ManifestEntry], schema: pa.Schema, partition: StructType, location: str
) -> pa.RecordBatch:
    """Entries of one manifest as a batch of `batch_schema`; raises `InvalidTableError` where a value fits no column."""
    try:
        arrays = [_column(entries, field, partition, location) for field in schema]
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InvalidTableError(f"cannot read {location!r}: {reason}", location=location) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(entries: list[ManifestEntry], field: pa.Field, partition: StructType, location: str) -> pa.Array:
    if field.name == "manifest_path":
        return pa.repeat(location, len(entries))
    if field.name == "partition":
        return partition_array((entry.data_file.partition for entry in entries), partition)
    if field.name in _ENTRY_ATTRIBUTES:
        values: list[Any] = [getattr(entry, field.name) for entry in entries]
    else:
        values = [getattr(entry.data_file, field.name) for entry in entries]
    if pa.types.is_map(field.type):
        # A null says as much about a column as no entry for it.
        values = [None if v is None else [pair for pair in v.items() if pair[1] is not None] for v in values]
    return pa.array(values, field.type)
