"""Spliced and stitched files read by engines other than ours, and files that these wrote, spliced and stitched."""

import os
import re
from dataclasses import dataclass

import datafusion
import duckdb
import pytest

from icekeep.formats.rewrite.copy_row_groups import stitch
from icekeep.formats.rewrite.task import FilePiece
from icekeep.spec.types import DATE, LONG, STRING, decimal
from icekeep.storage.local.storage import LocalStorage
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.foreign_files import read_data_with_pyiceberg
from kit.spliced import (
    FILTERS,
    INDEXED,
    check_file,
    check_offset_indexes,
    encoded,
    local_file,
    metrics_of,
    ordinals,
    read_stored,
    rows_of,
    some_files,
    spliced,
    stitched,
    stored,
)
from kit.spliced import PLAIN as STITCHED
from kit.spliced import SCHEMA as STITCHED_SCHEMA
from kit.spliced import some_rows as stitched_rows

SCHEMA = schema_of(
    column(1, "n", LONG, required=True), column(2, "s", STRING), column(3, "day", DATE), column(4, "price", decimal(15, 2)),
    column(5, "kind", STRING),
)  # fmt: skip
PLAIN = {"compression": "zstd", "use_dictionary": ["kind"], "write_page_index": True, "max_rows_per_page": 40}


def some_rows(start, count):
    return table_of(
        SCHEMA,
        [
            {
                "n": n,
                "s": f"text {n * 7919 % 1009}" if n % 5 else None,
                "day": None if n < 80 else n // 7,
                "price": -n,
                "kind": "ab"[n % 2],
            }
            for n in range(start, start + count)
        ],
    )


def piece(path):
    file = local_file(path)
    return FilePiece(location=path, record_count=file.record_count, size_bytes=file.file_size_in_bytes)


@pytest.fixture
def paths(tmp_path):
    """Files of 250 rows each, in row groups of 100, 100 and 50."""
    found = [str(tmp_path / f"{n}.parquet") for n in range(3)]
    for n, path in enumerate(found):
        with open(path, "wb") as stream:
            stream.write(parquet_bytes(some_rows(250 * n, 250), 100, **PLAIN))
    return found


@pytest.fixture
def file(paths, tmp_path):
    (found,), moved = spliced(LocalStorage(), [piece(path) for path in paths], SCHEMA, str(tmp_path / "new"))
    assert moved == {1, 2, 3, 4}
    return found


@pytest.mark.slow
def test_duckdb_reads_a_spliced_file_as_its_parts(file, paths):
    with duckdb.connect() as session:
        assert session.read_parquet(file.file_path).fetchall() == session.read_parquet(paths).fetchall()
        for where in (
            "n = 612",
            "day = date '1970-02-20'",
            f"s = 'text {613 * 7919 % 1009}'",
            "price < -740",
            "day is null",
        ):
            found = session.sql(f"select * from '{file.file_path}' where {where} order by n").fetchall()
            assert found == session.sql(f"select * from read_parquet({paths}) where {where} order by n").fetchall()
            assert found


@pytest.mark.slow
def test_duckdb_uses_bloom_filter_of_spliced_file(paths, tmp_path):
    properties = {"write.parquet.bloom-filter-enabled.column.s": "true"}
    pieces = [piece(path) for path in paths]
    (found,), moved = spliced(LocalStorage(), pieces, SCHEMA, str(tmp_path / "new"), properties=properties)
    assert moved == {1, 3, 4}
    texts = [text for text in some_rows(0, 750)["s"].to_pylist() if text][::50] + [f"other {n}" for n in range(20)]
    with duckdb.connect() as session:
        for text in texts:
            probe = f"select bloom_filter_excludes from parquet_bloom_probe('{found.file_path}', 's', '{text}')"
            assert session.sql(probe).fetchall() == [(text.startswith("other"),)]


def test_pyiceberg_reads_a_spliced_file_as_its_parts(file, paths):
    whole = read_data_with_pyiceberg([file], SCHEMA, os.path.dirname(file.file_path))
    parts = read_data_with_pyiceberg([local_file(path) for path in paths], SCHEMA, os.path.dirname(paths[0]))
    assert whole.to_pylist() == parts.to_pylist()
    assert whole.num_rows == 750


def test_datafusion_prunes_pages_of_spliced_file(file):
    for n in (1, 255, 655, 747):
        config = datafusion.SessionConfig({"datafusion.explain.analyze_level": "dev"}).with_target_partitions(1)
        session = datafusion.SessionContext(config)
        session.register_parquet("t", file.file_path)
        found = session.sql(f"select n, s, kind from t where n = {n}").to_pydict()
        expected = some_rows(n, 1).to_pydict()
        assert found == {name: expected[name] for name in ("n", "s", "kind")}
        plan = str(session.sql(f"explain analyze select n, s from t where n = {n}").to_pylist())
        total, matched = map(int, re.findall(r"page_index_pages_pruned=(\d+) total → (\d+) matched", plan)[0])
        assert (total, matched) == (24, 1)


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_files_that_duckdb_wrote_are_spliced(tmp_path, version):
    paths = [str(tmp_path / f"{part}.parquet") for part in range(3)]
    schema = schema_of(column(1, "n", LONG), column(2, "s", STRING))
    with duckdb.connect() as session:
        for part, path in enumerate(paths):
            rows = f"range({part} * 5000, {part} * 5000 + 5000) t(i)"
            session.sql(
                f"copy (select (hash(i) // 2)::bigint as n, 'text ' || hash(i) as s from {rows})"
                f" to '{path}' (format parquet, codec 'zstd', parquet_version '{version}', field_ids {{n: 1, s: 2}})"
            )
    check_as_encoded(paths, schema, tmp_path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_files_that_datafusion_wrote_are_spliced(tmp_path, version):
    options = datafusion.ParquetWriterOptions(
        statistics_enabled="page", compression="zstd(3)", dictionary_enabled=False, writer_version=version,
        data_page_row_count_limit=60,
    )  # fmt: skip
    paths = [str(tmp_path / f"{part}.parquet") for part in range(3)]
    for part, path in enumerate(paths):
        session = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))
        session.from_arrow(some_rows(250 * part, 250)).write_parquet_with_options(path, options)
    assert check_as_encoded(paths, SCHEMA, tmp_path)


def test_bounds_that_datafusion_cut_are_not_taken_for_values(tmp_path):
    schema = schema_of(column(1, "n", LONG), column(2, "s", STRING), column(3, "t", STRING))
    path = str(tmp_path / "0.parquet")
    options = datafusion.ParquetWriterOptions(
        statistics_enabled="page", compression="zstd(3)", dictionary_enabled=False, statistics_truncate_length=64
    )
    rows = table_of(schema, [{"n": n, "s": f"{n:04}" * 40, "t": f"{n:04}"} for n in range(200)])
    datafusion.SessionContext().from_arrow(rows).write_parquet_with_options(path, options)
    assert check_as_encoded([path], schema, tmp_path, {"write.metadata.metrics.default": "full"}) == {1, 3}


def check_as_encoded(paths, schema, directory, properties=None):
    storage, pieces = LocalStorage(), [piece(path) for path in paths]
    facts = {"properties": properties or {}}
    files, moved = spliced(storage, pieces, schema, str(directory / "spliced"), **facts)
    others = encoded(storage, pieces, schema, str(directory / "encoded"), **facts)
    assert stored(storage, files).equals(stored(storage, others))
    assert metrics_of(files) == metrics_of(others)
    if moved:
        assert all(check_file(storage, file) for file in files)
    return moved


@pytest.fixture
def local(tmp_path):
    @dataclass
    class Local:
        storage: LocalStorage
        files: list
        file: object
        path: str

    storage = LocalStorage()
    files = some_files(storage, directory=str(tmp_path), **INDEXED | FILTERS)
    path = str(tmp_path / "stitched.parquet")
    return Local(storage, files, stitched(storage, files, STITCHED_SCHEMA, path), path)


@pytest.mark.slow
def test_duckdb_reads_a_stitched_file_as_its_parts(local):
    parts = [file.file_path for file in local.files]
    with duckdb.connect() as session:
        whole = session.read_parquet(local.path)
        assert session.sql(f"select count(*) from '{local.path}'").fetchall() == [(750,)]
        assert whole.fetchall() == session.read_parquet(parts).fetchall()
        where = f"s = '{stitched_rows(0, 700)['s'][612]}' and n is not null"
        found = session.sql(f"select n from '{local.path}' where {where} order by n").fetchall()
        assert found == session.sql(f"select n from read_parquet({parts}) where {where} order by n").fetchall()
        assert found
        assert session.sql(f"select count(*) from '{local.path}' where s = 'text 1x'").fetchall() == [(0,)]


@pytest.mark.slow
def test_duckdb_uses_bloom_filters_of_stitched_file(local):
    with duckdb.connect() as session:
        for text in [stitched_rows(0, 700)["s"][n].as_py() for n in (0, 399, 612)] + ["text 1x", "text 2x"]:

            def excluded(path, text=text):
                probe = f"select row_group_id, bloom_filter_excludes from parquet_bloom_probe('{path}', 's', '{text}')"
                return [is_excluded for _, is_excluded in sorted(session.sql(probe).fetchall())]

            answers = excluded(local.path)
            assert answers == [answer for file in local.files for answer in excluded(file.file_path)]
            assert len(answers) == 9
            assert sum(answers) > 5


def scanned(path, where):
    """The rows that DataFusion finds, and of several things to read how many there were and how many it read."""
    config = datafusion.SessionConfig({"datafusion.explain.analyze_level": "dev"}).with_target_partitions(1)
    session = datafusion.SessionContext(config)
    session.register_parquet("t", path)
    rows = session.sql(f"select n, s from t where {where} order by n").to_pydict()
    plan = str(session.sql(f"explain analyze select n, s from t where {where}").to_pylist())
    counts = re.findall(r"(\w+)=(\d+) total → (\d+) matched", plan)
    return rows, {name: (int(total), int(matched)) for name, total, matched in counts}


def test_datafusion_prunes_stitched_file_by_bloom_filter(local):
    text = stitched_rows(0, 700)["s"][612].as_py()
    rows, counts = scanned(local.path, f"s = '{text}'")
    assert rows == {"n": [612, 613, 614], "s": [text] * 3}
    total, matched = counts["row_groups_pruned_bloom_filter"]
    assert total > 3
    assert matched == 1


def test_datafusion_prunes_pages_of_stitched_file(local):
    for n in (1, 255, 655, 747):
        rows, counts = scanned(local.path, f"n = {n}")
        assert rows["n"] == [n]
        total, matched = counts["page_index_pages_pruned"]
        assert total > 1
        assert matched == 1


@pytest.mark.slow
def test_datafusion_files_are_stitched_and_renumbered(tmp_path):
    """Row groups that DataFusion wrote get new ordinals in the stitched file."""
    options = datafusion.ParquetWriterOptions(
        max_row_group_size=100, statistics_enabled="page", bloom_filter_on_write=True, compression="zstd(3)"
    )
    storage, files = LocalStorage(), []
    for part in range(3):
        path = str(tmp_path / f"{part}.parquet")
        session = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))
        session.from_arrow(stitched_rows(250 * part, 250)).write_parquet_with_options(path, options)
        files.append(local_file(path))
    location = str(tmp_path / "stitched.parquet")
    file = stitch(files, storage, location, schema=STITCHED_SCHEMA)
    assert read_stored(storage, file).equals(rows_of(storage, files))
    assert [ordinals(storage, f) for f in files] == [[0, 1, 2]] * 3
    assert ordinals(storage, file) == list(range(9))
    check_offset_indexes(storage, file)
    for n in (1, 255, 655):
        assert scanned(location, f"n = {n}")[0]["n"] == [n]


@pytest.mark.slow
def test_pyiceberg_reads_a_stitched_file_as_its_parts(local):
    whole = read_data_with_pyiceberg([local.file], STITCHED_SCHEMA, os.path.dirname(local.path))
    parts = read_data_with_pyiceberg(local.files, STITCHED_SCHEMA, os.path.dirname(local.path))
    assert whole.to_pylist() == parts.to_pylist()
    assert whole.num_rows == 750


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "uncompressed"])
def test_files_that_duckdb_wrote_are_stitched(tmp_path, codec):
    storage = LocalStorage()
    files = []
    with duckdb.connect() as session:
        for part in range(3):
            path = str(tmp_path / f"{part}.parquet")
            session.sql(
                f"copy (select i::bigint as n, 'text ' || i as s from range({part} * 5000, {part} * 5000 + 5000) t(i))"
                f" to '{path}' (format parquet, codec '{codec}', row_group_size 2048, field_ids {{n: 1, s: 2}})"
            )
            files.append(local_file(path))
        location = str(tmp_path / "stitched.parquet")
        file = stitched(storage, files, STITCHED, location, compression=codec.replace("uncompressed", "none"))
        assert session.sql(f"select count(*), sum(n), count(distinct s) from '{location}'").fetchall() == [
            (15_000, 15_000 * 14_999 // 2, 15_000)
        ]
    assert read_stored(storage, file).equals(rows_of(storage, files))
