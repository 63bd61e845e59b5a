"""`icekeep why` on a real table: what it prints for people and for machines, and its exit statuses."""

import json

import msgspec
import pytest

from icekeep import cli
from icekeep.maintenance.why.reasons import WhyResult
from kit.deletes import data_files
from kit.lake import Lake


@pytest.fixture
def lake(tmp_path, monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    lake = Lake(tmp_path)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}")
    lake.filled(commits=2, files=1)
    return lake


def asked(lake, capsys, *words):
    status = cli.main(["why", "--table", "db.events", "--conf", f"{lake.directory}/icekeep.yaml", *words])
    return status, *capsys.readouterr()


@pytest.mark.slow
def test_file_history_is_one_json_object_without_empty_fields(lake, capsys):
    path = data_files(lake.load())[0].file_path
    status, out, err = asked(lake, capsys, path, "--where", "id > 5", "--output", "json")
    document = json.loads(out)
    assert (status, err, document["job"], document["status"]) == (0, "", "why", "done")
    result = msgspec.convert(document["result"], WhyResult, strict=False)
    assert (result.file_path, result.kind, result.deletes_count) == (path, "data file", 0)
    assert result.is_read_by_filter is True
    assert not {"plans", "vectors", "referenced_data_file"} & {*document["result"]}


@pytest.mark.slow
def test_for_people_single_facts_come_first_and_then_tables(lake, capsys):
    name = data_files(lake.load())[0].file_path.rpartition("/")[2]
    status, out, _ = asked(lake, capsys, name)
    assert status == 0
    assert out.startswith("why local.db.events: done\nfile_path        file:///")
    heads = [line for line in out.splitlines() if line.endswith(")") and line[0].isalpha() and " (" in line[:15]]
    assert heads == ["history (1)", "refs (1)", "columns (4)"]


@pytest.mark.slow
def test_a_path_that_several_files_have_is_wrong_usage(lake, capsys):
    status, out, err = asked(lake, capsys, ".parquet")
    assert (status, out) == (2, "")
    assert err.startswith("icekeep: 2 files end with '.parquet': ")
