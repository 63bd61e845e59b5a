"""Whoever owns one table writes its metadata and what lies below its location; the jobs run with rights on all tables.

Nothing that an owner writes makes a job delete, overwrite or copy a file of another table, or one that is nobody's.
"""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Committed
from icekeep.catalog.sql import SqlCatalog
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, SafetyError
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.delete.locations import forget_locations
from icekeep.maintenance.delete.neighbours import Neighbours, neighbours
from icekeep.maintenance.delete.plan_file import digest_of
from icekeep.maintenance.deletes.job import plan_rewrite_position_deletes
from icekeep.maintenance.drop.job import drop_table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.restore.job import restore
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import format_metadata
from icekeep.spec.updates import SetLocation, SetProperties
from icekeep.storage.local.storage import UnflushedStorage
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import create_table
from kit.cases import for_each
from kit.changes import Recorder
from kit.runtime import no_spark
from kit.tables import add, data_file, swap

DAY_S = 86_400
RUN = "expire_snapshots-00000000-0000-4000-8000-000000000000"


class Warehouse:
    """The tables `db.victim` and `db.owner` beside each other on a disk, in a database."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = f"file://{directory}/wh"
        self.heard = Recorder()
        self.catalog = self.opened("lake")
        self.catalog.create_namespace(("db",))

    def opened(self, name, **properties):
        uri = f"sqlite:///{self.directory}/catalog.db"
        return SqlCatalog(name, {"uri": uri, "warehouse": self.root, **properties}, UnflushedStorage())

    def table(self, name, *files, location=None, **properties):
        """A new table that has some files, whose bytes are written where it puts them; `__` in properties stands for `.`."""
        named = {key.replace("__", "."): value for key, value in properties.items()}
        schema = pa.schema([("id", pa.int64())])
        table = create_table(self.catalog, ("db", name), schema, location=location, properties=named)
        if not files:
            return table
        directory = named.get("write.data.path", f"{table.metadata.location}/data")
        return add(table, *(self.file(f"{directory}/{name}") for name in files))

    def file(self, location):
        path = Path(local_path(location))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"rows".ljust(100))
        return replace(data_file("x"), file_path=location)

    def left(self, table, *locations):
        """The table after two commits, of which one adds files by their names and one removes them."""
        table = add(table, *(self.file(location) for location in locations))
        return commit(table, DeleteFiles(paths=frozenset(locations)), runtime=SYSTEM).table

    def expire(self, table, **told):
        told = {"older_than": SYSTEM.now_ms() + 1, "retain_last": 1, "trash": 0} | told
        return expire_snapshots(table.refresh(), no_spark, listener=self.heard, **told)

    def put(self, location, data=b"{}", days=0):
        path = Path(local_path(location))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        at_s = SYSTEM.now_ms() / 1000 - days * DAY_S
        os.utime(path, (at_s, at_s))
        return path

    def forge(self, owner, files, above="plans", **said):
        """A plan that no run of icekeep has made."""
        directory = f"{owner.metadata.location}/.icekeep/{above}/{RUN}"
        rows = [{"kind": "data file", "location": one, "size-in-bytes": None} for one in files]
        listed = pa.table({"kind": ["data file"] * len(files), "location": files})
        part = {
            "location": f"{directory}/files-0001.jsonl",
            "files": [{"kind": "data file", "files_count": len(files), "bytes": 0}],
            "digest": digest_of(listed),
        }
        head = {
            "job": "expire_snapshots",
            "run": RUN,
            "directory": directory,
            "table": owner.name,
            "table-uuid": owner.metadata.table_uuid,
            "table-location": owner.metadata.location,
            "metadata-location": owner.metadata_location,
            "created-ms": 1,
            "not-before-ms": 1,
            "trash-until-ms": None if above == "plans" else 4_102_444_800_000,
            "snapshot-ids": [],
            "ref-names": [],
            "outside-count": 0,
            "parts": [part],
            "hash": "0",
        }
        self.put(part["location"], "".join(json.dumps(row) + "\n" for row in rows).encode())
        self.put(f"{directory}/plan.json", json.dumps({**head, **said}).encode())
        return directory

    def found(self, *below):
        """What there is, by the names of paths, with its bytes."""
        paths = [path for one in below for path in Path(local_path(one)).rglob("*")]
        return {str(path): path.read_bytes() for path in paths if path.is_file()}


@pytest.fixture
def lake(tmp_path):
    return Warehouse(tmp_path)


def test_data_path_in_another_table_yields_no_garbage(lake):
    victim = lake.table("victim", "a", "b")
    data = f"{victim.metadata.location}/data"
    owner = lake.table("owner", write__data__path=data, write__metadata__path=f"{victim.metadata.location}/metadata")
    lake.left(owner, f"{data}/a", f"{data}/b")
    before = lake.found(victim.metadata.location)
    result = lake.expire(owner)
    assert (result.deleted_data_files_count, result.kept_outside_files_count) == (0, 4)
    assert before.items() <= lake.found(victim.metadata.location).items()
    assert any(warning.endswith("name their directory in reclaim.roots") for warning in lake.heard.warnings)


@for_each("names", [None, "shared", "above"])
def test_files_in_a_shared_data_path_stay(lake, names):
    shared = f"{lake.root}-shared/data"
    victim, owner = (lake.table(name, name, write__data__path=shared) for name in ("victim", "owner"))
    lake.left(owner, f"{shared}/victim", f"{shared}/x")
    roots = {None: "", "shared": shared, "above": f"{lake.root}-shared"}[names]
    result = lake.expire(owner, options={"reclaim.roots": roots})
    # Whoever names the directory of several tables lets each of them delete in it what is its garbage.
    assert result.deleted_data_files_count == (2 if names == "shared" else 0)
    assert Path(local_path(f"{shared}/victim")).exists() is (names != "shared")
    for table in (victim, owner):
        drop_table(table.refresh(), no_spark)
    shutil.rmtree(lake.directory / "wh")
    shutil.rmtree(local_path(shared), ignore_errors=True)


@for_each("roots", ["ext/{}", "ext/{}/", "ext/{}/deep", "lnk/{}"])
@for_each("claims", [False, True])
def test_reclaim_roots_do_not_open_another_tables_location(lake, roots, claims):
    name = f"{roots.replace('/', '-').format('x')}-{claims}"
    (lake.directory / "ext").mkdir(exist_ok=True)
    if not (lake.directory / "lnk").exists():
        (lake.directory / "lnk").symlink_to(lake.directory / "ext")
    place, root = f"file://{lake.directory}/ext/{name}", f"file://{lake.directory}/{roots.format(name)}"
    victim = lake.table(f"victim-{name}", write__data__path=place)
    owner = lake.table(f"owner-{name}", **({"write__data__path": root} if claims else {}))
    file = f"{root.rstrip('/').removesuffix('/deep')}/deep/a"
    add(victim, lake.file(file))
    lake.left(owner, file)
    named = lake.opened("lake", **{"reclaim.roots": root})
    result = lake.expire(named.load(owner.identifier))
    assert (result.deleted_data_files_count, result.kept_outside_files_count) == (0, 1)
    assert Path(local_path(file)).exists()
    said = [one for one in lake.heard.warnings if "does not count for table" in one and owner.name in one]
    assert bool(said) == claims
    assert all("--option reclaim.roots" in one for one in said)
    # The one whose place it is, and nobody else's, has it.
    if not claims and roots == "ext/{}":
        lake.left(victim, f"{place}/old")
        assert lake.expire(named.load(victim.identifier)).deleted_data_files_count == 1


def test_nested_table_location_can_be_a_reclaim_root(lake):
    outer = lake.table("outer", "a")
    inner = lake.table("inner", location=f"{outer.metadata.location}/inner")
    lake.left(inner, f"{inner.metadata.location}/data/x")
    named = lake.opened("lake", **{"reclaim.roots": inner.metadata.location})
    assert lake.expire(named.load(inner.identifier)).deleted_data_files_count == 1


@for_each("is_configured", [True, False])
def test_a_data_path_that_the_operator_names_is_the_table_s_own(lake, is_configured):
    elsewhere = f"{lake.root}-data/owner{is_configured}"
    owner = lake.table(f"owner{is_configured}", write__data__path=elsewhere)
    lake.left(owner, f"{elsewhere}/a")
    options = {}
    if is_configured:
        owner = lake.opened("lake", **{"reclaim.roots": f"file:///nowhere/x, {lake.root}-data"}).load(owner.identifier)
    else:
        options = {"reclaim.roots": elsewhere}
    assert lake.expire(owner, options=options).deleted_data_files_count == 1
    assert not Path(local_path(f"{elsewhere}/a")).exists()


@for_each("inner", ["data", "data/part=1", ".", "../victim/data"])
def test_a_location_in_another_table_holds_none_of_its_files(lake, inner):
    """Whoever may commit to a table may set its location too."""
    victim = lake.table(f"victim{abs(hash(inner))}", "part=1/a")
    file = f"{victim.metadata.location}/data/part=1/a"
    location = f"{victim.metadata.location}/{inner}".replace("/victim/", f"/{victim.identifier[-1]}/")
    owner = lake.table(f"owner{abs(hash(inner))}")
    lake.left(owner, file)
    metadata = {"write.metadata.path": f"{owner.metadata.location}/metadata"}
    owner = swap(owner, SetProperties(metadata), SetLocation(location))
    before = lake.found(victim.metadata.location)
    refused = []
    for name, job in {
        "expire": lambda: lake.expire(owner),
        "orphans": lambda: remove_orphan_files(owner.refresh(), no_spark, force=True),
        "purge": lambda: drop_table(owner.refresh(), no_spark, purge=True),
    }.items():
        try:
            job()
        except SafetyError:
            refused.append(name)
    # An expiration is only refused where a location is the very place of another table.
    assert refused == (["orphans", "purge"] if inner == "data/part=1" else ["expire", "orphans", "purge"])
    assert before.items() <= lake.found(victim.metadata.location).items()


@for_each("to", ["", "/data", "/data/part"])
def test_symlink_location_into_another_table_yields_nothing(lake, to):
    name = to.replace("/", "-")
    victim, owner = lake.table(f"victim{name}", "part/a"), lake.table(f"owner{name}")
    link = Path(local_path(owner.metadata.location)) / "linked"
    link.symlink_to(local_path(victim.metadata.location + to))
    file = f"{owner.metadata.location}/linked{'/data/part/a'.removeprefix(to)}"
    lake.left(owner, file)
    elsewhere = {"write.metadata.path": f"{owner.metadata.location}/metadata"}
    owner = swap(owner, SetProperties(elsewhere), SetLocation(f"{owner.metadata.location}/linked"))
    before = lake.found(victim.metadata.location)
    refusal = ""
    try:
        assert lake.expire(owner).deleted_data_files_count == 0
    except SafetyError as error:
        refusal = error.message
    assert not refusal or "is the same place as" in refusal
    assert before.items() <= lake.found(victim.metadata.location).items()


@for_each("at", ["data", ".", "data/deep"])
@for_each("whose", ["victim", "nobody"])
def test_symlinks_below_the_location_are_not_followed(lake, at, whose, request):
    name = f"{at.replace('/', '-').replace('.', 'all')}-{whose}"
    victim = lake.table(f"victim-{name}", "a")
    elsewhere = f"{victim.metadata.location}/data" if whose == "victim" else f"file://{lake.directory}/{name}"
    lake.file(f"{elsewhere}/a")
    owner = lake.table(f"owner-{name}")
    link = Path(local_path(owner.metadata.location)) / at / "linked"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(local_path(elsewhere))
    lake.left(owner, f"{owner.metadata.location}/{at}/linked/a")
    before = lake.found(elsewhere)
    for trash in (0, 3):
        assert lake.expire(owner, trash=trash).deleted_data_files_count == 0
    drop_table(owner.refresh(), no_spark, purge=True)
    assert lake.found(elsewhere) == before


def test_reclaim_root_may_be_reached_by_a_symlink(lake):
    owner = lake.table("owner")
    disk = lake.directory / "disk"
    disk.mkdir()
    (Path(local_path(owner.metadata.location)) / "data").symlink_to(disk)
    named = f"{owner.metadata.location}/data"
    lake.left(owner, f"{named}/a")
    assert lake.expire(owner).kept_outside_files_count == 1
    lake.left(owner, f"{named}/b")
    assert lake.expire(owner, options={"reclaim.roots": named}).deleted_data_files_count == 1
    assert [path.name for path in disk.iterdir()] == ["a"]


@for_each("named", ["data", "lnk", "data, lnk"])
@for_each("live", ["data", "lnk"])
@for_each("how", ["at once", "a later run"])
def test_file_live_by_another_path_stays_in_reclaim_roots(lake, named, live, how):
    """Links above a place are followed: a directory has more names than the one by which it was named."""
    name = f"{named.replace(', ', '-')}-{live}-{how[-1]}"
    data, link = lake.directory / f"data-{name}", lake.directory / f"lnk-{name}"
    data.mkdir()
    link.symlink_to(data)
    places = {"data": data.as_uri(), "lnk": link.as_uri()}
    roots = ", ".join(places[one] for one in named.split(", "))
    options = {"reclaim.roots": roots}
    table = lake.table(name)
    for place in places.values():
        table = lake.left(table, f"{place}/a", f"{place}/of-{place.rpartition('/')[2]}")
    if how == "a later run":
        lake.expire(table, options={**options, "grace": "1h"})
        (head,) = Path(local_path(table.metadata.location)).glob(".icekeep/plans/*/plan.json")
        head.write_text(json.dumps(json.loads(head.read_text()) | {"created-ms": 1, "not-before-ms": 1}))
    add(table.refresh(), lake.file(f"{places[live]}/a"))
    told = {"older_than": "30d"} if how == "a later run" else {}
    lake.expire(table, options=options, **told)
    gone = {one for one in places if not (data / f"of-{one}-{name}").exists()}
    assert gone == {*named.split(", ")}
    assert (data / "a").exists()


def test_forged_plan_deletes_nothing_elsewhere(lake):
    victim, owner = lake.table("victim", "a"), lake.table("owner", "b")
    file = f"{victim.metadata.location}/data/a"
    nobodys = lake.put(f"file://{lake.directory}/etc/passwd", b"root")
    before = lake.found(victim.metadata.location, f"file://{lake.directory}/etc")
    said = {"roots": [victim.metadata.location, f"file://{lake.directory}/etc"]}
    lake.forge(owner, [file, nobodys.as_uri()], **said)
    assert lake.expire(owner, older_than="30d").finished_files_count == 0
    assert lake.found(victim.metadata.location, f"file://{lake.directory}/etc") == before
    assert any("name that directory in reclaim.roots, otherwise remove the plan" in one for one in lake.heard.warnings)


def test_the_parts_of_a_plan_lie_beside_its_head(lake):
    owner = lake.table("owner", "a")
    part = {"location": f"file://{lake.directory}/secret", "files": [], "digest": "0"}
    lake.forge(owner, [f"{owner.metadata.location}/data/a"], parts=[part])
    lake.expire(owner, older_than="30d")
    assert any("says that a part of it is" in one for one in lake.heard.warnings)


@for_each("target", ["etc/cron.d/evil", "wh/db/victim/metadata/v9.metadata.json", "wh/db/victim/data/new"])
def test_forged_plan_restores_nothing_elsewhere(lake, target):
    try:
        victim = lake.catalog.load(("db", "victim"))
    except IcekeepError:
        victim = lake.table("victim", "a")
        lake.table("owner", "b")
    owner = lake.catalog.load(("db", "owner"))
    at = f"{lake.directory}/{target}"
    directory = lake.forge(owner, [f"file://{at}"], "trash")
    lake.put(f"{directory}/files/_elsewhere/file{at}", b"* * * * * root id")
    lake.put(f"{directory}/done.json", b'{"absent-count": 0}')
    before = lake.found(victim.metadata.location)
    with pytest.raises(
        SafetyError, match=r"lie outside the places of table 'db\.owner'.* name their directory in reclaim"
    ):
        restore(owner, no_spark)
    assert not Path(at).exists()
    assert lake.found(victim.metadata.location) == before
    shutil.rmtree(local_path(directory))


def test_a_restore_follows_no_link(lake):
    owner = lake.table("owner", "a")
    there = lake.directory / "etc"
    there.mkdir()
    link = Path(local_path(owner.metadata.location)) / "cron.d"
    link.symlink_to(there)
    directory = lake.forge(owner, [f"{owner.metadata.location}/cron.d/evil"], "trash")
    lake.put(f"{directory}/files/cron.d/evil", b"* * * * * root id")
    lake.put(f"{directory}/done.json", b'{"absent-count": 0}')
    with pytest.raises(SafetyError, match="outside the places"):
        restore(owner, no_spark)
    assert not [*there.iterdir()]


@for_each("linked", [".icekeep", ".icekeep/runs", ".icekeep/plans", ".icekeep/trash", ".icekeep/runs/dead"])
def test_what_dead_runs_have_left_is_not_looked_for_behind_links(lake, linked):
    name = linked.replace("/", "-").replace(".", "")
    victim, owner = lake.table(f"victim-{name}", "a"), lake.table(f"owner-{name}", "b")
    lake.put(f"{victim.metadata.location}/runs/x/y", days=10)
    for path in lake.found(lake.root):
        os.utime(path, (0, 0))
    link = Path(local_path(owner.metadata.location)) / linked
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(local_path(lake.root))
    before = lake.found(lake.root)
    assert sweep_runs(owner, SYSTEM, keep="", listener=lake.heard) == 0
    assert lake.found(lake.root) == before


@for_each("how", ["metadata path", "location", "location and uuid", "link", "registered twice"])
def test_no_commit_deletes_metadata_of_another_table(lake, how):
    name = how.replace(" ", "-")
    victim = lake.table(f"victim-{name}", "a")
    metadata = victim.metadata_location.rpartition("/")[0]
    trimming = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    owner = lake.table(f"owner-{name}", **{key.replace(".", "__"): value for key, value in trimming.items()})
    logged, document = victim.metadata_location, json.loads(Path(local_path(owner.metadata_location)).read_bytes())
    if how == "metadata path":
        document["properties"]["write.metadata.path"] = metadata
    elif how == "link":
        link = Path(local_path(owner.metadata.location)) / "metadata" / "linked"
        link.symlink_to(local_path(metadata))
        logged = f"{link}/{logged.rpartition('/')[2]}"
        document["table-uuid"] = victim.metadata.table_uuid
    else:
        document["location"] = victim.metadata.location
        if how != "location":
            document["table-uuid"] = victim.metadata.table_uuid
    document["metadata-log"] = [{"timestamp-ms": 1, "metadata-file": logged}] * 2
    Path(local_path(owner.metadata_location)).write_text(json.dumps(document))
    before = lake.found(metadata)
    assert isinstance(lake.catalog.swap(owner.refresh(), [], [SetProperties({"x": "y"})]), Committed)
    assert before.items() <= lake.found(metadata).items()


@for_each("is_named", [False, True])
def test_old_metadata_outside_the_location_is_reported_once(lake, is_named, caplog):
    caplog.clear()
    elsewhere = f"file://{lake.directory}/metadata-{is_named}"
    trimming = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    said = {key.replace(".", "__"): value for key, value in {**trimming, "write.metadata.path": elsewhere}.items()}
    lake.catalog = lake.opened("lake", **({"reclaim.roots": elsewhere} if is_named else {}))
    table = lake.table(f"t{is_named}", **said)
    for number in range(4):
        table = swap(table, SetProperties({"x": str(number)}))
    kept = [*Path(local_path(elsewhere)).glob("*.metadata.json")]
    told = [one for one in caplog.messages if "name their directory in reclaim.roots" in one]
    assert (len(kept), len(told)) == ((2, 0) if is_named else (5, 1))


def test_tables_of_another_catalog_are_neighbours(lake, monkeypatch):
    """Two catalogs in one SQL database may have tables in the same place."""
    victim = lake.table("victim", "a")
    other = lake.opened("other")
    other.create_namespace(("db",))
    schema, elsewhere = pa.schema([("id", pa.int64())]), {"write.metadata.path": f"{lake.root}-elsewhere/x/metadata"}
    nested = create_table(
        other, "db.nested", schema, location=f"{victim.metadata.location}/in/nested", properties=elsewhere
    )
    nested = add(nested, lake.file(f"{nested.metadata.location}/data/x"))
    for path in lake.found(lake.root):
        os.utime(path, (0, 0))
    with pytest.raises(SafetyError, match=r"of table 'other\.db\.nested'"):
        remove_orphan_files(victim, no_spark, force=True)
    # Of one whose metadata this catalog cannot read it is known where that lies.
    os.unlink(local_path(nested.metadata_location))
    forget_locations()
    assert neighbours(victim) == Neighbours()
    reads = []
    monkeypatch.setattr(UnflushedStorage, "read", lambda _, location: reads.append(location))
    around = replace(victim, metadata=replace(victim.metadata, location=f"{lake.root}-elsewhere"))
    with pytest.raises(SafetyError, match=r"elsewhere/x' of table 'other\.db\.nested'"):
        neighbours(around)
    # What could not be read is not tried again for each table.
    assert reads == []


@for_each("how", ["its path", "a link", "its location"])
def test_rows_of_another_table_are_not_rewritten_into_this_one(lake, how):
    name = how.replace(" ", "-")
    victim, owner = lake.table(f"victim-{name}", "a", "b"), lake.table(f"owner-{name}")
    data = f"{victim.metadata.location}/data"
    if how == "a link":
        link = Path(local_path(owner.metadata.location)) / "data"
        link.symlink_to(local_path(data))
        data = f"{owner.metadata.location}/data"
    owner = add(owner, lake.file(f"{data}/a"), lake.file(f"{data}/b"))
    if how == "its location":
        owner = swap(owner, SetLocation(data))
    for job in (compact, plan_compact):
        with pytest.raises(
            SafetyError, match=rf"lies in a place of table 'db\.{victim.identifier[-1]}'.*rewrite\.roots"
        ):
            job(owner, no_spark, options={"min-input-files": "2"})
    allowed = lake.opened("lake", **{"rewrite.roots": f"{victim.metadata.location}/data"}).load(owner.identifier)
    assert plan_compact(allowed, no_spark, options={"min-input-files": "2"}).rewritten_data_files_count == 2


@for_each("where", ["location", "elsewhere"])
@for_each("claim", ["itself", "inner", "link"])
def test_a_shared_data_path_stops_no_compaction(lake, where, claim):
    name = f"{where}-{claim}"
    data = f"{lake.root}-objects/{name}"
    table = lake.table(name, "in/a", "in/b", **({"write__data__path": data} if where == "elsewhere" else {}))
    data = data if where == "elsewhere" else f"{table.metadata.location}/data"
    link = lake.directory / f"link-{name}"
    link.symlink_to(local_path(data))
    lake.table(f"other-{name}", write__data__path={"itself": data, "inner": f"{data}/in", "link": link.as_uri()}[claim])
    # Below a location that does not have the table's name the others are looked at.
    for one in (table, swap(table, SetLocation(f"{lake.root}/renamed-{name}")) if where == "elsewhere" else table):
        assert plan_compact(one, no_spark, options={"min-input-files": "2"}).rewritten_data_files_count == 2


@for_each("deep", [False, True])
def test_compaction_refuses_rows_of_another_table(lake, deep):
    victim = lake.table(f"victim{deep}", "part/a", "part/b")
    data = f"{victim.metadata.location}/data"
    owner = lake.table(f"owner{deep}", write__data__path=f"{data}/part" if deep else victim.metadata.location)
    owner = add(owner, lake.file(f"{data}/part/a"), lake.file(f"{data}/part/b"))
    with pytest.raises(SafetyError, match=r"lies in a place of table 'db\.victim"):
        plan_compact(owner, no_spark, options={"min-input-files": "2"})


@for_each("suffix", ["", "-0b5f"])
def test_files_below_a_location_ask_no_catalog(lake, monkeypatch, suffix):
    table = lake.table(f"own{suffix}", "a", "b", location=f"file://{lake.directory}/far/own{suffix}")
    asked = ("default_location", "list_pointers", "list_namespaces", "list_tables")
    for method in asked:
        monkeypatch.setattr(SqlCatalog, method, lambda *_, at=method: pytest.fail(at))
    assert plan_compact(table, no_spark, options={"min-input-files": "2"}).rewritten_data_files_count == 2
    monkeypatch.undo()


def test_delete_files_of_another_table_are_not_rewritten(lake):
    victim, owner = lake.table("victim", "a"), lake.table("owner", "x")
    deletes = tuple(
        replace(lake.file(f"{victim.metadata.location}/data/{name}"), content=FileContent.POSITION_DELETES)
        for name in "cd"
    )
    owner = commit(owner, RowDelta(added_deletes=deletes, named=frozenset({f"{owner.metadata.location}/data/x"}))).table
    with pytest.raises(SafetyError, match=r"lies in a place of table 'db\.victim'.*rewrite\.roots"):
        plan_rewrite_position_deletes(owner, no_spark, options={"rewrite-all": "true"})


@for_each("where", ["data", "elsewhere"])
def test_own_files_are_rewritten_at_any_location(lake, where):
    said = {"write__data__path": f"{lake.root}-own/data"} if where == "elsewhere" else {}
    lake.table(f"other-{where}", "a")
    table = lake.table(f"own-{where}", "a", "b", **said)
    assert plan_compact(table, no_spark, options={"min-input-files": "2"}).rewritten_data_files_count == 2


def test_a_purge_is_finished_only_beside_its_plan(lake):
    """Where the catalog tells no warehouse, plans of purges lie beside tables, where an owner may write."""
    lake.catalog.warehouse = None
    owner = lake.table("owner", location=f"{lake.root}/db/owner/inner")
    gone = lake.table("gone", "a", location=f"file://{lake.directory}/nobodys")
    lake.catalog.drop(gone.identifier)
    before = lake.found(gone.metadata.location)
    above = replace(owner, metadata=replace(owner.metadata, location=f"{lake.root}/db/owner"))
    said = {
        "table": gone.name,
        "table-uuid": gone.metadata.table_uuid,
        "table-location": gone.metadata.location,
        "metadata-location": gone.metadata_location,
        "catalog": lake.catalog.identity,
    }
    directory = lake.forge(above, [f"{gone.metadata.location}/data/a", gone.metadata_location], "purges", **said)
    lake.put(f"{directory}/before.json", format_metadata(gone.metadata))
    lake.put(f"{directory}/dropped.json")
    result = drop_table(owner, no_spark, purge=True, listener=lake.heard)
    assert (result.status, result.finished_files_count) == ("partial", 0)
    assert "does not lie where plans of that table lie" in result.problems[0]
    assert lake.found(gone.metadata.location) == before
