"""Stitched files read by engines other than ours, and files that these wrote, stitched."""

import os
import re
from dataclasses import dataclass

import datafusion
import duckdb
import pytest

from icekeep.formats.rewrite.copy_row_groups import stitch
from icekeep.storage.local.storage import LocalStorage
from kit.foreign_files import read_data_with_pyiceberg
from kit.spliced import (
    FILTERS,
    INDEXED,
    PLAIN,
    SCHEMA,
    check_offset_indexes,
    local_file,
    ordinals,
    read_stored,
    rows_of,
    some_files,
    some_rows,
    stitched,
)


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
    return Local(storage, files, stitched(storage, files, SCHEMA, path), path)


@pytest.mark.slow
def test_duckdb_reads_a_stitched_file_as_its_parts(local):
    parts = [file.file_path for file in local.files]
    with duckdb.connect() as session:
        whole = session.read_parquet(local.path)
        assert session.sql(f"select count(*) from '{local.path}'").fetchall() == [(750,)]
        assert whole.fetchall() == session.read_parquet(parts).fetchall()
        where = f"s = '{some_rows(0, 700)['s'][612]}' and n is not null"
        found = session.sql(f"select n from '{local.path}' where {where} order by n").fetchall()
        assert found == session.sql(f"select n from read_parquet({parts}) where {where} order by n").fetchall()
        assert found
        assert session.sql(f"select count(*) from '{local.path}' where s = 'text 1x'").fetchall() == [(0,)]


@pytest.mark.slow
def test_duckdb_excludes_the_same_row_groups_by_the_bloom_filters_of_a_stitched_file(local):
    with duckdb.connect() as session:
        for text in [some_rows(0, 700)["s"][n].as_py() for n in (0, 399, 612)] + ["text 1x", "text 2x"]:

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


def test_datafusion_skips_row_groups_by_the_bloom_filters_of_a_stitched_file(local):
    text = some_rows(0, 700)["s"][612].as_py()
    rows, counts = scanned(local.path, f"s = '{text}'")
    assert rows == {"n": [612, 613, 614], "s": [text] * 3}
    total, matched = counts["row_groups_pruned_bloom_filter"]
    assert total > 3
    assert matched == 1


def test_datafusion_skips_pages_by_the_page_index_of_a_stitched_file(local):
    for n in (1, 255, 655, 747):
        rows, counts = scanned(local.path, f"n = {n}")
        assert rows["n"] == [n]
        total, matched = counts["page_index_pages_pruned"]
        assert total > 1
        assert matched == 1


@pytest.mark.slow
def test_files_that_datafusion_wrote_are_stitched_and_their_row_groups_numbered(tmp_path):
    options = datafusion.ParquetWriterOptions(
        max_row_group_size=100, statistics_enabled="page", bloom_filter_on_write=True, compression="zstd(3)"
    )
    storage, files = LocalStorage(), []
    for part in range(3):
        path = str(tmp_path / f"{part}.parquet")
        session = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))
        session.from_arrow(some_rows(250 * part, 250)).write_parquet_with_options(path, options)
        files.append(local_file(path))
    location = str(tmp_path / "stitched.parquet")
    file = stitch(files, storage, location, schema=SCHEMA)
    assert read_stored(storage, file).equals(rows_of(storage, files))
    assert [ordinals(storage, f) for f in files] == [[0, 1, 2]] * 3
    assert ordinals(storage, file) == list(range(9))
    check_offset_indexes(storage, file)
    for n in (1, 255, 655):
        assert scanned(location, f"n = {n}")[0]["n"] == [n]


@pytest.mark.slow
def test_pyiceberg_reads_a_stitched_file_as_its_parts(local):
    whole = read_data_with_pyiceberg([local.file], SCHEMA, os.path.dirname(local.path))
    parts = read_data_with_pyiceberg(local.files, SCHEMA, os.path.dirname(local.path))
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
        file = stitched(storage, files, PLAIN, location, compression=codec.replace("uncompressed", "none"))
        assert session.sql(f"select count(*), sum(n), count(distinct s) from '{location}'").fetchall() == [
            (15_000, 15_000 * 14_999 // 2, 15_000)
        ]
    assert read_stored(storage, file).equals(rows_of(storage, files))
