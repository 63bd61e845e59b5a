import io
import json

from icekeep.cli import main
from icekeep.maintenance.check.faults import CLASSES, Fault, Tally
from icekeep.maintenance.check.job import result
from icekeep.operations.console.terminal import print_tables
from icekeep.operations.shown.results import check_shown
from kit.lake import Lake


def shown(tally):
    stream = io.StringIO()
    print_tables("check db.t", check_shown(result(None, tally, None, deep=False), "lake.db.t"), stream)
    return stream.getvalue()


def test_each_class_is_a_row_with_examples_and_what_to_do():
    tally = Tally()
    for n in range(7):
        tally.add(Fault(number=301, where=f"s3://b/{n}.parquet", detail="there is no such file"))
    tally.add(Fault(number=214, where="s3://b/d.parquet", detail="it reaches nothing"))
    tally.gap("snapshot 7", "its manifest list was not read")
    text = shown(tally)
    assert "data-file-missing" in text
    assert text.count("there is no such file") == 5
    assert "301 ... and 2 more" in text
    assert "icekeep repair --table lake.db.t --fault 214,301 --dry-run\n" in text
    assert "301 readers: scans that need it fail" in text
    assert f"301 what to do: {CLASSES[301].mend}" in text
    assert "where_notices_are (1)\n214 s3://b/d.parquet: it reaches nothing\n" in text
    assert "snapshot 7: its manifest list was not read" in text


def test_of_a_sound_table_there_are_only_figures():
    text = shown(Tally())
    assert "faults_count" in text
    assert "where_" not in text


def test_the_command_line_names_the_table_and_the_configuration(tmp_path, capsys):
    lake = Lake(tmp_path)
    lake.filled(commits=1)
    next(path for path in lake.files_on_disk() if path.suffix == ".parquet").unlink()
    config = tmp_path / "icekeep.yaml"
    config.write_text(json.dumps({"catalogs": {"local": lake.properties}}))
    assert main(["check", "--catalog", "local", "--table", "db.events", "--config", str(config)]) == 3
    assert f"icekeep repair --table local.db.events --fault 301 --dry-run --config {config}" in capsys.readouterr().out


def test_what_only_older_snapshots_have_is_not_to_be_mended(tmp_path, capsys):
    lake = Lake(tmp_path)
    lake.filled(commits=1)
    lost = next(path for path in lake.files_on_disk() if path.suffix == ".parquet")
    lost.unlink()
    config = tmp_path / "icekeep.yaml"
    config.write_text(json.dumps({"catalogs": {"local": lake.properties}}))
    on = ["--table", "local.db.events", "--config", str(config)]
    main(["check", *on, "--output", "json"])
    (found,) = json.loads(capsys.readouterr().out)["result"]["faults"]
    assert not found["is_only_older"]
    assert main(["repair", *on, "--fault", "301", "--accept-loss", found["examples"][0]["where"]]) == 0
    capsys.readouterr()
    assert main(["check", *on]) == 3
    text = capsys.readouterr().out
    assert "icekeep repair" not in text
    assert (
        "301 what to do: no branch has it at its head, only other snapshots or tags; it goes when they expire\n" in text
    )
    assert f"to_check (1)\nicekeep check --table local.db.events --ref main --config {config}\n" in text
