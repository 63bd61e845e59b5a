"""Several ranges of keys of the same rows, written by the threads of one process."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.sort import external as external_sort
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.external import Sorter
from icekeep.formats.sort.keys import key_ranges, sort_keys
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.collections import PositionSet
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from icekeep.spec.types import LONG, STRING
from kit.columns import column, schema_of, table_of
from kit.data_files import options_for, read_files
from kit.storage import MemoryStorage

pytestmark = pytest.mark.slow

EVENTS = schema_of(column(1, "id", LONG), column(2, "kind", STRING))
ORDERING = Ordering(fields=(SortField(source_id=1, transform=Identity()),))


@pytest.fixture
def storage():
    return MemoryStorage()


def events(ids):
    return table_of(EVENTS, [{"id": int(i), "kind": f"k{i % 3}"} for i in ids])


def tables(files_count=12, rows=250):
    ids = np.random.default_rng(5).permutation(files_count * rows)
    return [events(ids[n * rows : (n + 1) * rows]) for n in range(files_count)]


def pieces_of(storage, some):
    numbers = count()
    found = []
    for table in some:
        with DataFileWriter(storage, EVENTS, options_for(), lambda: f"memory:/t/old-{next(numbers)}.parquet") as writer:
            writer.write(table)
            (file,) = writer.close()
        found.append(
            FilePiece(location=file.file_path, record_count=file.record_count, size_bytes=file.file_size_in_bytes)
        )
    return tuple(found)


def tasks_of(pieces, ids, **facts):
    """A task for each range of ids between some."""
    points = sort_keys(events(ids), ORDERING, EVENTS).to_pylist()
    whole = RewriteTask(
        pieces=pieces,
        schema=EVENTS,
        specs={0: UNPARTITIONED},
        spec_id=0,
        table_location="memory:/t",
        properties={},
        target_file_size_bytes=2**29,
        ordering=ORDERING,
        operation_id="op",
        **facts,
    )
    return [replace(whole, key_range=one, partition_id=number) for number, one in enumerate(key_ranges(points))]


@pytest.mark.parametrize("budget_bytes", [2**30, 2**14])
@pytest.mark.parametrize("ids", [(1000,), (10, 11, 2990), (0, 5000)])
def test_the_files_are_those_that_each_task_would_make_and_rows_are_read_once(storage, monkeypatch, ids, budget_bytes):
    monkeypatch.setattr(external_sort, "RUN_ROWS", 97)
    tasks = tasks_of(pieces_of(storage, tables()), ids, budget_bytes=budget_bytes, files_count=2)
    together = rewrite_together(tasks, storage)
    assert (together.read_count, together.live_count) == (3000, 3000)
    alone = [rewrite(replace(task, operation_id="alone"), storage).files for task in tasks]
    assert [file.record_count for file in together.files] == [file.record_count for some in alone for file in some]
    found = read_files(storage, together.files, EVENTS)
    assert found["id"].to_pylist() == list(range(3000))
    assert found.equals(read_files(storage, [file for some in alone for file in some], EVENTS))
    assert len({file.file_path for file in together.files}) == len(together.files)


def test_deletes_reach_the_rows_of_every_range(storage):
    pieces = pieces_of(storage, tables())
    gone = [(pieces[n].location, n) for n in (2, 5)]
    delete = write_position_deletes(storage, "memory:/t/old-delete.parquet", "PARQUET", gone, spec_id=0)
    reached = tuple(replace(piece, deletes=PositionSet([0] if n in (2, 5) else [])) for n, piece in enumerate(pieces))
    outcome = rewrite_together(tasks_of(reached, (900, 1800), delete_files=(delete,)), storage)
    assert (outcome.read_count, outcome.live_count) == (3000, 2998)
    expected = set(range(3000)) - {tables()[n]["id"][n].as_py() for n in (2, 5)}
    assert read_files(storage, outcome.files, EVENTS)["id"].to_pylist() == sorted(expected)


@pytest.mark.parametrize(
    ("broken", "error"),
    [({"location": "memory:/t/none.parquet"}, MissingFileError), ({"record_count": 1}, InvalidTableError)],
)
def test_a_piece_that_cannot_be_read_stops_all_ranges_and_leaves_nothing(storage, broken, error):
    pieces = pieces_of(storage, tables())
    before = set(storage.files)
    with pytest.raises(error):
        rewrite_together(tasks_of((*pieces[:3], replace(pieces[3], **broken), *pieces[4:]), (1000, 2000)), storage)
    assert set(storage.files) == before


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_range_that_cannot_be_written_takes_the_files_of_the_others_with_it(storage, number):
    tasks = tasks_of(pieces_of(storage, tables()), (1000, 2000))
    storage.create(f"memory:/t/data/0000{number}-0-op-00001.parquet", b"another's")
    before = set(storage.files)
    with pytest.raises(FileExistsError):
        rewrite_together(tasks, storage)
    assert set(storage.files) == before


@pytest.mark.parametrize("budget_bytes", [2**30, 2**14])
def test_rows_of_several_threads_are_all_there_and_in_order(tmp_path, monkeypatch, budget_bytes):
    monkeypatch.setattr(external_sort, "RUN_ROWS", 500)
    parts = tables(files_count=60, rows=200)
    with (
        Sorter(ORDERING, EVENTS, budget_bytes, str(tmp_path)) as sorter,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(sorter.add, parts))
        found = pa.concat_tables(sorter.sorted_rows())
        assert sorter.row_count == 12_000
        assert (sorter.spilled_count > 1) == (budget_bytes < 2**20)
    assert found["id"].to_pylist() == list(range(12_000))
    assert Counter(found["kind"].to_pylist()) == Counter(f"k{i % 3}" for i in range(12_000))
