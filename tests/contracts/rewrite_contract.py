"""What every way of rewriting files must keep; the test of a way inherits it, fills a table and rewrites it.

In memory and without Spark, on real files. What lies in a file is read with pyarrow, and what a table holds with a scan that
applies deletes plainly, so that our readers do not vouch for our writers.
"""

import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeep.catalog.base import Table
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.values import value_from_bytes
from icekeep.tables.read import read_table
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.job_world import World
from kit.lake import events, multiset
from kit.naive_scan import live_entries, scan_rows

LINEAGE = ("_row_id", "_last_updated_sequence_number")
MONTHS = (("at", "month"),)


class RewriteContract:
    """What the test of a way of rewriting says of it.

    Attributes:
        versions: of the table format in which it can be done.
        content: of the files that are written anew.
        leaves: the kinds of delete files that are there afterwards.
        is_of_start: whether new files have the data sequence number of the snapshot that was read; else the commit's own.
        max_bytes: of a new file; `None` where nothing was asked for.
    """

    versions: ClassVar[tuple[int, ...]] = (2, 3)
    content: ClassVar[FileContent] = FileContent.DATA
    leaves: ClassVar[frozenset[FileContent]] = frozenset()
    is_of_start: ClassVar[bool] = True
    max_bytes: ClassVar[int | None] = None

    @staticmethod
    def fill(version: int) -> World:
        """Files of three months, with deleted rows of every kind."""
        return with_deletes(version)

    @staticmethod
    def rewrite(table: Table) -> Any:
        """Rewrite all that there is to rewrite."""
        raise NotImplementedError

    @pytest.fixture(params=[2, 3])
    def done(self, request: pytest.FixtureRequest) -> "Rewritten":
        return rewritten(type(self), request.param if request.param in self.versions else self.versions[-1])

    def test_files_are_replaced_and_nothing_else(self, done: "Rewritten") -> None:
        assert done.new
        assert done.gone
        assert {entry.data_file.content for entry in done.new} == {self.content}
        assert {entry.data_file.content for entry in live_entries(done.after)} - {FileContent.DATA} == self.leaves

    def test_every_row_is_as_it_was(self, done: "Rewritten") -> None:
        assert rows(done.after) == done.rows

    def test_rows_are_same_without_equality_deletes(self, done: "Rewritten") -> None:
        """A reader that knows no equality deletes."""
        assert multiset(scan_rows(done.after)) == done.rows

    def test_each_row_keeps_its_id_and_the_number_of_its_last_change(self, done: "Rewritten") -> None:
        if done.after.metadata.format_version > 2:
            assert rows(done.after, *LINEAGE) == rows(done.before, *LINEAGE)

    def test_sequence_numbers_keep_reach_of_later_deletes(self, done: "Rewritten") -> None:
        start, commit = done.before.metadata.last_sequence_number, done.number
        assert {entry.file_sequence_number for entry in done.new} == {commit}
        data_numbers = {entry.sequence_number or 0 for entry in done.new}
        assert max(data_numbers) == (self.number_of(done, start) if self.is_of_start else commit)

    def test_files_have_current_spec_and_one_partition_each(self, done: "Rewritten") -> None:
        metadata = done.after.metadata
        for entry in done.new:
            file = entry.data_file
            assert file.spec_id == metadata.default_spec_id
            if self.content is FileContent.DATA:
                assert partitions_of(done.after, file) == {file.partition}

    def test_what_is_recorded_of_a_file_is_true(self, done: "Rewritten") -> None:
        for file in (entry.data_file for entry in done.new):
            if file.content_offset is None:
                assert file.file_size_in_bytes == len(done.after.storage.read(file.file_path))
                assert file.record_count == read(done.after, file).num_rows
            if self.content is FileContent.DATA:
                assert_honest(done.after, file)

    def test_no_file_is_larger_than_was_asked_for(self, done: "Rewritten") -> None:
        if self.max_bytes is not None:
            assert max(entry.data_file.file_size_in_bytes for entry in done.new) <= self.max_bytes
            assert len(done.new) > 3

    def number_of(self, done: "Rewritten", start: int) -> int:
        """The greatest data sequence number of the new files."""
        return start


@dataclass(frozen=True)
class Rewritten:
    """A table before and after, and what came and went."""

    before: Table
    after: Table

    @cached_property
    def rows(self) -> Counter[str]:
        """What a scan gave before."""
        return rows(self.before)

    @property
    def new(self) -> list[ManifestEntry]:
        """Entries that were not there before."""
        return _not_in(live_entries(self.after), live_entries(self.before))

    @property
    def gone(self) -> list[ManifestEntry]:
        """Entries that are not there any more."""
        return _not_in(live_entries(self.before), live_entries(self.after))

    @property
    def number(self) -> int:
        """The sequence number of the commit."""
        return self.after.metadata.last_sequence_number


def _not_in(entries: Iterable[ManifestEntry], others: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    known = {_identity(entry.data_file) for entry in others}
    return [entry for entry in entries if _identity(entry.data_file) not in known]


def _identity(file: DataFile) -> tuple[str, int | None]:
    return file.file_path, file.content_offset


@cache
def rewritten(contract: type[RewriteContract], version: int) -> Rewritten:
    """Done once for all tests, which only look at what came of it."""
    world = contract.fill(version)
    before = world.table
    contract.rewrite(before)
    return Rewritten(before, world.table)


def with_deletes(version: int) -> World:
    """Two files a month, of three months: rows deleted by position, or by vector, and by value."""
    world = plain(version)
    table = world.table
    first, second, *_, last = data_files(table)
    if version == 2:
        table = delete_positions(table, [(first.file_path, n) for n in (0, 3)])
        table = delete_positions(table, [(second.file_path, 1)])
    else:
        table = delete_by_vector(table, first.file_path, [0, 3])
        table = delete_by_vector(table, second.file_path, [1])
    delete_equal(table, events(5, 2).select(["id"]), ["id"], like=last)
    return world


def plain(version: int, rows_count: int = 5, **properties: str) -> World:
    """The same without deletes."""
    world = World(version, MONTHS, **properties)
    for month in (1, 2, 3):
        world.append(*(2 * month - 2, 2 * month - 1), month=month, rows=rows_count)
    return world


def rows(table: Table, *extra: str) -> Counter[str]:
    """What a scan gives, with metadata columns if wanted."""
    names = [field.name for field in table.metadata.schema.fields]
    return multiset(read_table(table, select=[*names, *extra]))


def read(table: Table, file: DataFile) -> pa.Table:
    """A Parquet file as pyarrow reads it."""
    return pq.read_table(io.BytesIO(table.storage.read(file.file_path)))


def partitions_of(table: Table, file: DataFile) -> set[tuple[Any, ...]]:
    """The partitions that rows of a file are in by its spec: by month, by kind, or both."""
    names = [field.name for field in table.metadata.specs_by_id[file.spec_id].fields]
    found = read(table, file)
    kinds = found.column("kind").to_pylist()
    months = [(at.year - 1970) * 12 + at.month - 1 for at in found.column("at").to_pylist()]
    return {
        tuple({"at_month": month, "kind": kind}[name] for name in names)
        for kind, month in zip(kinds, months, strict=True)
    }


def assert_honest(table: Table, file: DataFile) -> None:
    """Counts are right, and no value lies outside of its bounds."""
    content = read(table, file)
    for field in table.metadata.schema.fields:
        if field.name == "tags":
            continue
        values = content.column(field.name).to_pylist()
        known = [value for value in values if value is not None]
        assert (file.value_counts or {})[field.field_id] == len(values)
        assert (file.null_value_counts or {})[field.field_id] == len(values) - len(known)
        if not known:
            continue
        bounds = [(of or {})[field.field_id] for of in (file.lower_bounds, file.upper_bounds)]
        if field.name != "at":
            low, high = (value_from_bytes(field.type, bound) for bound in bounds)
            assert low <= min(known)
            assert high >= max(known)
