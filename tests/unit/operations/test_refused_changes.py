"""What commands do on a catalog that says beforehand that it takes no commits."""

import json

import pytest

from icekeep.catalog.sql import SqlCatalog
from icekeep.cli import main
from icekeep.errors import UnsupportedError
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.restore.job import plan_restore, restore
from icekeep.settings import CatalogChange
from kit.lake import Lake
from kit.runtime import no_spark

REFUSAL = "catalog 'local' is only read"


@pytest.fixture
def lake(tmp_path, monkeypatch):
    lake = Lake(tmp_path)
    lake.filled(commits=3)
    (tmp_path / "icekeep.yaml").write_text(json.dumps({"catalogs": {"local": lake.properties}}))
    monkeypatch.setenv("ICEKEEP_CONFIG", str(tmp_path / "icekeep.yaml"))
    return lake


@pytest.fixture
def refuse(monkeypatch):
    def refuse():
        def check_change(_, change):
            if change is CatalogChange.COMMIT:
                raise UnsupportedError(REFUSAL)

        monkeypatch.setattr(SqlCatalog, "check_change", check_change, raising=False)

    return refuse


def ran(capsys, *words):
    status = main([*words, "--table", "local.db.events", "--output", "json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "--option", "rewrite-all=true"],
        ["expire_snapshots"],
        ["rollback", "--set-current-ref", "main"],
        ["drop-statistics"],
        ["ref", "create-tag", "one"],
    ],
    ids=" ".join,
)
def test_a_dry_run_is_shown_and_the_run_itself_is_refused(lake, refuse, capsys, words):
    assert "refusal" not in ran(capsys, *words, "--dry-run")[1]
    refuse()
    before = lake.files_on_disk()
    status, document = ran(capsys, *words, "--dry-run")
    assert (status, document["status"], document["refusal"]) == (0, "planned", REFUSAL)
    status, document = ran(capsys, *words)
    assert (status, document["error"]["message"]) == (4, REFUSAL)
    assert lake.files_on_disk() == before


def test_people_read_of_a_dry_run_that_the_run_would_be_refused(lake, refuse, capsys):
    refuse()
    assert main(["compact", "--table", "local.db.events", "--dry-run"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith(f": planned, nothing was changed; the run itself would be refused: {REFUSAL}")


def test_a_dry_run_on_many_tables_warns_of_the_refusal(lake, refuse, capsys):
    refuse()
    assert main(["compact", "--match", "local.db.*", "--dry-run"]) == 0
    assert f"compact of local.db.events would be refused: {REFUSAL}" in capsys.readouterr().err


def test_restore_is_refused_before_files_move(lake, refuse):
    expire_snapshots(lake.load(), no_spark, older_than="0s", retain_last=1, trash=3)
    refuse()
    before = {path for path in lake.files_on_disk() if path.parent.name != "claims"}
    assert (plan_restore(lake.load()).note or "").endswith(f"the run itself would be refused: {REFUSAL}")
    with pytest.raises(UnsupportedError, match=REFUSAL):
        restore(lake.load())
    assert {path for path in lake.files_on_disk() if path.parent.name != "claims"} == before
