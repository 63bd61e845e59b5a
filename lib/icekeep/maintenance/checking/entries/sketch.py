"""What is held of each live entry while all are compared: keys, a size and the number of its manifest, 20 bytes a file."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.maintenance.checking.entries.keys import keys_of, paired
from icekeep.maintenance.checking.entries.reading import Numbered, batches
from icekeep.maintenance.checking.faults import Tally
from icekeep.planning.entries import DecodeTask
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from icekeep.storage.location_keys import Keys

Rows = NDArray[Any]

FILE = np.dtype([("key", np.int64), ("size", np.int64), ("manifest", np.int32)])
"""A data file, or a delete file that is no vector: the key of its location, its bytes, and the number of its manifest."""

VECTOR = np.dtype([*FILE.descr, ("id", np.int64), ("ref", np.int64)])
"""A deletion vector: as `FILE` has it of its Puffin file, a key of that and its offset, and the key of its data file or 0."""

DATA_COLUMNS = ("file_path", "file_size_in_bytes")
DELETE_COLUMNS = (*DATA_COLUMNS, "content", "file_format", "content_offset", "referenced_data_file")


class Sketch(msgspec.Struct, frozen=True):
    """Live entries; rows of `FILE`, and of `VECTOR`."""

    files: Rows
    vectors: Rows

    @classmethod
    def joined(cls, several: Iterable["Sketch"]) -> "Sketch":
        """The entries of all."""
        held = [*several]
        files = [np.empty(0, FILE), *(one.files for one in held)]
        return cls(np.concatenate(files), np.concatenate([np.empty(0, VECTOR), *(one.vectors for one in held)]))

    @property
    def keys(self) -> Keys:
        """The keys of all files, those of vectors last."""
        return np.concatenate([self.files["key"], self.vectors["key"]])

    @property
    def manifests(self) -> NDArray[np.int32]:
        """The numbers of the manifests, in the same order."""
        return np.concatenate([self.files["manifest"], self.vectors["manifest"]])

    @property
    def marks(self) -> Keys:
        """Keys of files with their sizes, in the same order: what a listing of the store must have."""
        return paired(self.keys, np.concatenate([self.files["size"], self.vectors["size"]]))


def sketch_of(some: Sequence[Numbered], task: DecodeTask, tally: Tally) -> Sketch:
    """The live entries of a chunk of manifests of one content.

    Args:
        task: reads `DELETE_COLUMNS`.
        tally: is told of manifests that cannot be read, and of files whose paths are no locations.
    """
    is_data = some[0][1].content is ManifestContent.DATA
    columns = task.columns if not is_data else frozenset({"manifest_path", *DATA_COLUMNS})
    task = msgspec.structs.replace(task, columns=columns)
    return Sketch.joined(_sketch(batch, numbers, tally) for batch, numbers in batches(some, task, tally))


def _sketch(batch: pa.RecordBatch, numbers: NDArray[np.int32], tally: Tally) -> Sketch:
    keys, there = keys_of(batch["file_path"])
    if not there.all():
        for path in batch["file_path"].filter(pa.array(~there)).to_pylist():
            tally.gap(f"file {path!r}", "its path is no location")
        batch, keys, numbers = batch.filter(pa.array(there)), keys[there], numbers[there]
    rows = np.empty(len(keys), FILE)
    rows["key"], rows["size"], rows["manifest"] = keys, batch["file_size_in_bytes"].to_numpy(), numbers
    if "content" not in batch.schema.names:
        return Sketch(rows, np.empty(0, VECTOR))
    is_vector = vector_mask(batch)
    chosen = batch.filter(pa.array(is_vector))
    vectors = np.empty(chosen.num_rows, VECTOR)
    for name in FILE.names or ():
        vectors[name] = rows[name][is_vector]
    vectors["id"] = paired(vectors["key"], pc.fill_null(chosen["content_offset"], -1).to_numpy())
    vectors["ref"] = keys_of(chosen["referenced_data_file"])[0]
    return Sketch(rows[~is_vector], vectors)


def vector_mask(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which entries are deletion vectors, as `reach.is_deletion_vector` says."""
    is_puffin = pc.equal(pc.utf8_lower(batch["file_format"]), "puffin")
    mask = pc.and_(is_puffin, pc.equal(batch["content"], int(FileContent.POSITION_DELETES)))
    return np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)
