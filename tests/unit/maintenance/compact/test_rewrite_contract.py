"""What every way of rewriting must keep, of the ways in which a compaction brings rows to new files."""

import hashlib
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from contracts.rewrite_contract import RewriteContract, Rewritten, plain, with_deletes
from icekeep.catalog.base import Table
from icekeep.maintenance.compact.job import compact
from icekeep.spec.evolution import AddPartitionField
from icekeep.tables.verbs import append, update_spec
from kit.job_world import World
from kit.lake import SCHEMA, events
from kit.runtime import no_spark
from kit.spliced import chunks_found_in

pytestmark = pytest.mark.slow


class Compaction(RewriteContract):
    told: ClassVar[dict[str, Any]] = {}
    options: ClassVar[dict[str, str]] = {}

    @classmethod
    def rewrite(cls, table: Table) -> Any:
        options = {"rewrite-all": "true", "remove-dangling-deletes": "true", **cls.options}
        return compact(table, no_spark, options=options, **cls.told)


class TestBinpack(Compaction):
    pass


class TestSort(Compaction):
    told: ClassVar[dict[str, Any]] = {"sort_order": "kind DESC NULLS LAST, id"}


class TestZorder(Compaction):
    told: ClassVar[dict[str, Any]] = {"sort_order": "zorder(id, amount)"}


class TestHilbert(Compaction):
    told: ClassVar[dict[str, Any]] = {"sort_order": "hilbert(id, amount)"}


class TestRowGroupsCopied(Compaction):
    """Byte for byte, which rows that are deleted forbid, and in version 3 row ids, which would have to be written."""

    versions = (2,)
    options: ClassVar[dict[str, str]] = {"stitch": "always"}

    @staticmethod
    def fill(version: int) -> World:
        return plain(version)


class TestPagesCopied(Compaction):
    """Those of a column that has no dictionary; deletes of rows forbid that, too."""

    @staticmethod
    def fill(version: int) -> World:
        world = plain(version)
        for number in range(10, 13):
            rows = events(number, 1000)
            texts = pa.array([hashlib.sha256(b"%d %d" % (number, n)).hexdigest() for n in range(len(rows))])
            append(world.table, rows.set_column(1, SCHEMA.field("kind"), texts))
        return world

    def test_pages_are_copied(self, done: Rewritten) -> None:
        pairs = [(old.data_file.file_path, new.data_file.file_path) for old in done.gone for new in done.new]
        copied = [chunks_found_in(done.after.storage, old, new) for old, new in pairs]
        assert {"kind"} in copied


class TestPagesNeverCopied(Compaction):
    options: ClassVar[dict[str, str]] = {"stitch": "never"}


class TestMovedToAnotherSpec(Compaction):
    """Only where it is asked for, since there are equality deletes."""

    options: ClassVar[dict[str, str]] = {"output-spec-id": "1"}

    @staticmethod
    def fill(version: int) -> World:
        world = with_deletes(version)
        update_spec(world.table, [AddPartitionField("kind", "identity")])
        return world


class TestCutAtTheTargetSize(Compaction):
    options: ClassVar[dict[str, str]] = {"target-file-size-bytes": "6000", "max-file-size-bytes": "9000"}
    # A row group is written to its end.
    max_bytes = 9_000 + 4_000

    @staticmethod
    def fill(version: int) -> World:
        return plain(version, 1000, write__parquet__row_group_size_bytes="4000")
