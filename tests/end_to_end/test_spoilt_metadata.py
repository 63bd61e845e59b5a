"""A table whose metadata file was cut off, from the shell: what is said of it, and how it begins again."""

from pathlib import Path
from urllib.parse import urlparse

from kit.lake import events, multiset
from kit.shell import Operator


def test_a_table_whose_metadata_was_cut_off_begins_again_from_the_file_before(operator: Operator) -> None:
    table = operator.lake.filled(commits=3, files=1)
    location = table.metadata_location
    before = table.metadata.metadata_log[-1].metadata_file
    path = Path(urlparse(location).path)
    path.write_bytes(path.read_bytes()[:400])
    rows = multiset(events(0, 20, month=1)) + multiset(events(1, 20, month=2))
    files = operator.lake.files_on_disk()
    checked = operator.run("check", "--output", "json")
    assert (checked.status, checked.json["status"]) == (3, "faulty")
    assert checked.json["result"]["sound_metadata"][0]["metadata_location"] == before
    others = operator.run("repair", "--fault", "302")
    assert others.status == 1
    assert "`--fault 101` has the table begin again" in others.complaint
    refused = operator.run("repair", "--fault", "101", "--output", "json")
    assert (refused.json["status"], refused.json["result"]["mended"]) == ("partial", [])
    [stays] = refused.json["result"]["not_mended"]
    assert f"--accept-loss {location}" in stays["reason"]
    asked = ("--fault", "101", "--accept-loss", location)
    plan = operator.run("repair", *asked, "--dry-run", "--output", "json")
    assert (plan.status, plan.json["status"]) == (0, "planned")
    assert operator.lake.files_on_disk() == files
    assert "lost" in operator.run("repair", *asked, "--dry-run").out
    done = operator.run("repair", *asked, "--approve", plan.json["result"]["hash"], "--output", "json")
    assert (done.status, done.json["status"]) == (0, "done")
    result = done.json["result"]
    now = operator.lake.load()
    assert (result["metadata_location_before"], result["metadata_location"]) == (location, now.metadata_location)
    assert operator.lake.rows() == rows
    assert files < operator.lake.files_on_disk()
    assert len(operator.lake.foreign().snapshots()) == 2
