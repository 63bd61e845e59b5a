"""Files of a spec whose transform is not known are never written, which is said before any work."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.errors import UnsupportedError
from icekeep.maintenance.compact.job import compact
from icekeep.tables.verbs import append, create_table
from kit.runtime import no_spark


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with two files of one partition, whose metadata calls the transform of its spec by an unknown name."""
    catalog = open_catalog("local", {"type": "hadoop", "warehouse": str(tmp_path)})
    catalog.create_namespace(("db",))
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string())])
    table = create_table(catalog, "db.t", schema, partition_by=[("kind", "identity")])
    for number in range(2):
        table = append(table, pa.table({"id": [number], "kind": ["a"]}, schema=schema))
    path = Path(table.metadata_location.removeprefix("file://"))
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    path.write_bytes(text.replace(b'"identity"', b'"zorder[3]"'))
    return catalog.load("db.t")


def test_a_compaction_refuses_before_any_work(table: Table) -> None:
    before = sorted(info.location for info in table.storage.list(table.metadata.location) if "/data/" in info.location)
    with pytest.raises(UnsupportedError, match=r"partition spec 0 has a transform that is not known \(zorder\[3\]\)"):
        compact(table, no_spark, options={"rewrite-all": "true"})
    after = table.catalog.load("db.t")
    assert sorted(i.location for i in after.storage.list(table.metadata.location) if "/data/" in i.location) == before
    assert after.metadata.current_snapshot_id == table.metadata.current_snapshot_id
