"""Old files whose rows say where they lie, deletes of them, and the check that a rewrite tells where each of them went.

An oracle of places, not of values: no table is there, and a row's values are its old file and position.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from icekeep.formats.deletes.read import write_equality_deletes, write_position_deletes
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.formats.reader import open_reader
from icekeep.formats.rewrite.task import FilePiece, RewriteOutcome, RewriteTask
from icekeep.formats.row_moves import dropped_positions, new_positions
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import UNPARTITIONED, build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.types import INT, LONG, STRING
from icekeep.storage.base import Storage
from kit.columns import column, schema_of, table_of
from kit.data_files import options_for, read_table, write_files

MOVING = schema_of(
    column(1, "file", STRING), column(2, "at", LONG), column(3, "key", LONG), column(4, "third", INT)
)  # fmt: skip
BY_THIRD = build_spec(MOVING, [("third", "identity", None)], spec_id=1)

KEYS = 17


class OldFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file, and what deletes say of it.

    Attributes:
        named: positions that a position delete file or a vector names, perhaps beyond the end.
        has_vector: whether a vector names them.
        keys: rows of these keys are deleted.
    """

    file: DataFile
    named: frozenset[int] = frozenset()
    has_vector: bool = False
    keys: frozenset[int] = frozenset()

    @property
    def path(self) -> str:
        return self.file.file_path

    @property
    def applied(self) -> set[int]:
        return {position for position in self.named if position < self.file.record_count}

    @property
    def dropped(self) -> set[int]:
        return self.applied | {n for n in range(self.file.record_count) if key_of(self.path, n) in self.keys}


def key_of(path: str, position: int) -> int:
    return (position * 7 + sum(path.encode())) % KEYS


def moving_rows(path: str, row_count: int, schema: Schema = MOVING) -> pa.Table:
    rows = [{"file": path, "at": n, "key": key_of(path, n), "third": n % 3} for n in range(row_count)]
    return table_of(schema, rows)


def old_file(
    storage: Storage,
    number: int,
    row_count: int,
    file_format: str = "PARQUET",
    directory: str = "memory:/t/old",
    schema: Schema = MOVING,
    **facts: Any,
) -> DataFile:
    """A data file of some rows; `facts` are of its encoding."""
    directory = f"{directory}/{number:03d}"
    path = f"{directory}/001.{file_format.lower()}"
    rows = moving_rows(path, row_count, schema)
    (file,) = write_files(storage, schema, [rows], options_for(file_format, **facts), directory=directory)
    assert file.file_path == path
    return file


def deleting(
    storage: Storage, files: Sequence[OldFile], directory: str = "memory:/t/deletes"
) -> tuple[list[DataFile], list[FilePiece]]:
    """The delete files of some data files, and these whole as pieces of a task that is given the deletes."""
    deletes: list[DataFile] = []
    reaching: dict[str, list[int]] = {file.path: [] for file in files}
    plain = [file for file in files if file.named and not file.has_vector]
    if plain:
        pairs = [(file.path, position) for file in plain for position in sorted(file.named)]
        pairs.append(("memory:/t/of-another-group.parquet", 0))
        deletes.append(write_position_deletes(storage, f"{directory}/all.parquet", "PARQUET", pairs, spec_id=0))
        for file in plain:
            reaching[file.path].append(0)
    vectors = [(VectorTarget(location=f.path, spec_id=0), BitMap64(f.named)) for f in files if f.named and f.has_vector]
    for vector in write_deletion_vectors(storage, f"{directory}/all.puffin", vectors) if vectors else ():
        reaching[str(vector.referenced_data_file)].append(len(deletes))
        deletes.append(vector)
    for number, keys in enumerate(sorted({file.keys for file in files if file.keys}, key=sorted)):
        rows = table_of(MOVING, [{"key": key} for key in sorted(keys)]).select(["key"])
        key = schema_of(column(3, "key", LONG))
        location = f"{directory}/keys-{number}.parquet"
        written = write_equality_deletes(storage, location, "PARQUET", rows, [3], key, spec_id=0)
        for file in files:
            if file.keys == keys:
                reaching[file.path].append(len(deletes))
        deletes.append(written)
    pieces = [
        FilePiece(
            location=file.path,
            file_format=file.file.file_format,
            record_count=file.file.record_count,
            size_bytes=file.file.file_size_in_bytes,
            deletes=PositionSet(reaching[file.path]),
        )
        for file in files
    ]
    return deletes, pieces


def cut(storage: Storage, piece: FilePiece, cuts: Iterable[int]) -> list[FilePiece]:
    """A file in pieces that end before the row groups or stripes of some numbers; one of them may be empty."""
    with open_reader(storage, piece.location, piece.file_format) as reader:
        offsets = list(reader.part_offsets())
    if piece.file_format == "AVRO":
        return [piece]
    borders = [0, *sorted(offsets[number % len(offsets)] for number in cuts), piece.size_bytes]
    return [
        msgspec.structs.replace(piece, split=(start, end - start), size_bytes=end - start)
        for start, end in pairwise(borders)
    ]


def moving_task(
    pieces: Sequence[FilePiece], deletes: Sequence[DataFile] = (), location: str = "memory:/t", **facts: Any
) -> RewriteTask:
    given: dict[str, Any] = {"target_file_size_bytes": 2**29, "properties": {}, "operation_id": "op", "spec_id": 0}
    given["moves_directory"] = f"{location}/.icekeep/runs/run"
    return RewriteTask(
        pieces=tuple(pieces),
        delete_files=tuple(deletes),
        schema=MOVING,
        specs={0: UNPARTITIONED, 1: BY_THIRD},
        table_location=location,
        **{**given, **facts},
    )


def check_moves(storage: Storage, outcomes: Sequence[RewriteOutcome], files: Sequence[OldFile]) -> None:
    """Each live row lies where the moves say, dropped ones are nowhere, and the moves say which these are."""
    paths = [file.path for file in files]
    dropped, applied = (
        dropped_positions(outcomes, storage, paths),
        dropped_positions(outcomes, storage, paths, by_position=True),
    )
    assert {path: set(positions) for path, positions in dropped.items()} == {f.path: f.dropped for f in files}
    assert {path: set(positions) for path, positions in applied.items()} == {f.path: f.applied for f in files}
    written = {
        file.file_path: [(row["file"], row["at"]) for row in read_table(storage, file.file_path, MOVING).to_pylist()]
        for outcome in outcomes
        for file in outcome.files
    }
    everything = [(file.path, position) for file in files for position in range(file.file.record_count)]
    live = [(file.path, n) for file in files for n in range(file.file.record_count) if n not in file.dropped]
    assert sorted(row for rows in written.values() for row in rows) == sorted(live)
    # A row is known by the bits of its number: where all rows with any one bit are told rightly, each of them is.
    for bit in range(-1, len(everything).bit_length()):
        some = {row for number, row in enumerate(everything) if bit < 0 or number >> bit & 1}
        wanted = {file.path: BitMap64([at for path, at in some if path == file.path]) for file in files}
        for file in files:
            # Writers may name rows that are not there.
            wanted[file.path].update([file.file.record_count, 1 << 40])
        found = new_positions(outcomes, storage, wanted)
        rows = [written[path][position] for path, positions in found.items() for position in positions]
        assert sorted(rows) == sorted(some & set(live))
