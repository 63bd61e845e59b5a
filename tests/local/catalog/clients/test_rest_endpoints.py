"""What a REST server lists in `endpoints` decides what is asked of it: jobs that need more say so at once."""

import json

import pytest

from icekeep import cli
from icekeep.catalog.base import StoredPolicy, StoresPolicies
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, UnavailableError, UnsupportedError
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.configuration.policy_tables import resolve_table
from kit.catalogs import EVENTS, set_counter, simple_metadata
from kit.rest_server import CREDENTIALS, ENDPOINTS, POLICIES, UNREGISTER, Fault
from kit.runtime import FakeRuntime
from kit.shell import restored_logging
from kit.tables import files

TABLE = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
COMMITS = (
    ("compact",),
    ("rewrite_position_deletes",),
    ("rewrite_manifests",),
    ("expire_snapshots", "--older-than", "1h"),
    ("repair", "--fault", "214"),
)


@pytest.fixture
def table(server):
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


def without(*endpoints):
    assert set(endpoints) <= set(ENDPOINTS)
    return tuple(one for one in ENDPOINTS if one not in endpoints)


def asked_of(server, endpoints):
    """Our catalog, of a server that lists these."""
    server.endpoints = endpoints
    server.requests.clear()
    return open_catalog("local", server.properties)


def test_without_a_list_what_the_protocol_began_with_is_there(server, table):
    catalog = asked_of(server, ())
    assert catalog.storage_properties(EVENTS, table.metadata_location)
    catalog.drop(EVENTS)
    assert [(method, path) for method, path in server.requests if path.endswith(("credentials", "unregister"))] == []
    assert server.pointers == {}


@pytest.mark.parametrize("lost", ENDPOINTS)
def test_nothing_is_asked_that_a_server_does_not_list(server, table, lost):
    catalog = asked_of(server, without(lost))
    calls = (
        lambda: catalog.list_namespaces(),
        lambda: catalog.list_tables(("db",)),
        lambda: catalog.create_namespace(("eb",)),
        lambda: catalog.default_location(("db", "new")),
        lambda: catalog.swap(table, [], set_counter(1)),
        lambda: catalog.load(EVENTS),
        lambda: catalog.rename(EVENTS, ("db", "moved")),
        lambda: catalog.register_table(("db", "again"), table.metadata_location),
        lambda: catalog.drop(("db", "moved")),
        lambda: catalog.drop_namespace(("eb",)),
    )
    refused = []
    for call in calls:
        try:
            call()
        except UnsupportedError as error:
            refused.append(error.message)
        except NotFoundError:
            assert lost.startswith("POST "), "nothing but what was not made or moved is missing"
    method, _, path = lost.partition(" ")
    shape = path.replace("/{prefix}", "").split("/")
    same = [asked for verb, asked in server.requests if verb == method and matches(asked.split("/"), shape)]
    assert same == []
    said = (
        f"catalog 'local' does not take {lost!r}: it is not among the endpoints that its server lists; ask its operator"
    )
    assert {text.removesuffix(" for it") for text in refused} <= {said}
    assert refused or lost == "GET /v1/{prefix}/namespaces/{namespace}", "of that the requests that follow find out"


def matches(asked, shape):
    return len(asked) == len(shape) and all(s.startswith("{") or s == a for a, s in zip(asked, shape, strict=True))


def test_namespace_without_endpoint_is_checked_by_listing(server, table):
    """A server that cannot be asked for a namespace shows by the next request whether it exists."""
    catalog = asked_of(server, without("GET /v1/{prefix}/namespaces/{namespace}"))
    assert catalog.list_tables(("db",)) == [EVENTS]
    with pytest.raises(NotFoundError, match="no namespace 'none'"):
        catalog.list_tables(("none",))


def test_jobs_refuse_missing_commit_endpoint_before_work(server, table, tmp_path, capsys):
    table = commit(table, AppendFiles(files=files("old")), runtime=FakeRuntime()).table
    asked_of(server, without(f"POST {TABLE}"))
    conf = tmp_path / "icekeep.yaml"
    conf.write_text(json.dumps({"catalogs": {"c": server.properties}}))
    before = sorted(path for path in tmp_path.rglob("*") if path.suffix in (".avro", ".parquet"))

    def run(*command):
        with restored_logging():
            status = cli.main([*command, "--table", "c.db.events", "--config", str(conf)])
        return status, "".join(capsys.readouterr())

    for command in COMMITS:
        status, said = run(*command)
        assert (command, status) == (command, 4)
        assert "catalog 'c' does not take 'POST " in said, command
    assert sorted(path for path in tmp_path.rglob("*") if path.suffix in (".avro", ".parquet")) == before
    status, said = run("compact", "--dry-run")
    assert (status, "the run itself would be refused: catalog 'c' does not take 'POST " in said) == (0, True)
    # Their files are there all the same, and these jobs ask for no commit.
    assert run("plan_scan")[0] == 0
    asked_of(server, without(f"DELETE {TABLE}"))
    status, said = run("drop")
    assert (status, "does not take 'DELETE " in said, EVENTS in server.pointers) == (4, True, True)


def test_unlisted_tables_keep_files_beside_them(server, table):
    catalog = asked_of(server, without("GET /v1/{prefix}/namespaces/{namespace}/tables"))
    assert "does not list the tables of namespace 'db'" in neighbours(catalog.load(EVENTS)).unlisted_reason


def test_a_drop_unregisters_where_the_server_can(server, table):
    """What it says of the metadata is the last there is, also of a commit that came right before."""
    catalog = asked_of(server, (*without(f"DELETE {TABLE}"), UNREGISTER, CREDENTIALS))
    late = []
    answer = server.answer

    def commit_first(method, path, query, body):
        if path[-1:] == ["unregister"] and not late:
            late.append(table.catalog.swap(table, [], set_counter(1)).table.metadata_location)
        return answer(method, path, query, body)

    server.answer = commit_first
    location = catalog.drop(EVENTS)
    assert ([location], server.pointers) == (late, {})
    assert [method for method, _ in server.requests if method == "DELETE"] == []
    assert catalog.register_table(EVENTS, location).metadata.table_uuid == table.metadata.table_uuid
    server.key_lifetime = "PT30M"
    catalog = open_catalog("local", server.properties, runtime=FakeRuntime())
    assert catalog.drop(EVENTS) == location
    assert server.keys[-1] is not None


COMPACTION = {
    "policy-type": "system.data-compaction",
    "name": "big-files",
    "inheritable": True,
    "inherited": True,
    "namespace": ["db"],
    "version": 3,
    "content": json.dumps({"enable": True, "target_file_size_bytes": 5_000_000}),
}
EXPIRY = {
    "policy-type": "system.snapshot-expiry",
    "name": "week",
    "inheritable": True,
    "version": 0,
    "content": {"enable": False, "config": {"max_snapshot_age_days": 7}},
}
RULES = parse_config(
    """policies:
- name: all
  schedule: null
  match: prod.**
  jobs: {compact: {enabled: false, options: {min-input-files: 2}}, expire_snapshots: , check: }
tables: {prod.db.events: {jobs: {compact: {options: {target-file-size-bytes: 7000000}}}}}
"""
).rules


@pytest.fixture
def catalog(server, tmp_path):
    """A catalog with the table `db.events`, whose server has policies."""
    server.endpoints = (*ENDPOINTS, POLICIES)
    catalog = open_catalog("prod", server.properties)
    catalog.create_namespace(("db",))
    catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    server.policies[EVENTS] = [COMPACTION, EXPIRY]
    return catalog


def asked(server):
    return [path for _, path in server.requests if "polic" in path]


@pytest.mark.parametrize("page_length", [0, 1])
def test_policies_that_hold_for_a_table_are_read_page_by_page(server, catalog, page_length):
    server.page_length = page_length
    assert isinstance(catalog, StoresPolicies)
    assert catalog.stored_policies(EVENTS) == [
        StoredPolicy("system.data-compaction", "big-files", COMPACTION["content"], is_inherited=True),
        StoredPolicy("system.snapshot-expiry", "week", '{"enable":false,"config":{"max_snapshot_age_days":7}}'),
    ]
    assert asked(server) == ["/polaris/v1/applicable-policies"] * (1 + page_length)
    assert server.queries[-1].startswith("namespace=db&target-name=events")


def test_with_a_prefix_the_request_has_it_after_the_version(server, catalog):
    server.config = {"prefix": "main"}
    again = open_catalog("prod", server.properties)
    assert len(again.stored_policies(EVENTS)) == 2
    assert asked(server) == ["/polaris/v1/main/applicable-policies"]


@pytest.mark.parametrize("endpoints", [(), ENDPOINTS])
def test_a_server_that_does_not_list_the_request_is_not_asked(server, catalog, endpoints):
    server.endpoints = endpoints
    assert open_catalog("prod", server.properties).stored_policies(EVENTS) == []
    assert asked(server) == []


def test_missing_table_and_unreachable_server_are_errors(server, catalog):
    with pytest.raises(NotFoundError, match=r"no table 'db\.none' in catalog 'prod'"):
        catalog.stored_policies(("db", "none"))
    server.read_fault = Fault(applied=False, status=503)
    with pytest.raises(UnavailableError):
        catalog.stored_policies(EVENTS)


def test_stored_policies_rank_between_policy_and_file_layers(server, catalog):
    resolved = resolve_table(RULES, catalog, EVENTS, {"icekeep.expire_snapshots.retain_last": "4"})
    compact, expire, check = resolved.rules.jobs
    # Switched on by what the server has stored, and sized by the file's layer of the table.
    assert compact.held_by is None
    assert compact.call.arguments == ("--option=min-input-files=2", "--option=target-file-size-bytes=7000000")
    assert expire.held_by == "switched off by stored policy 'week'"
    assert expire.call.arguments == ("--older-than=7d", "--retain-last=4")
    assert check.held_by is None
    assert resolved.problems == ()


def test_a_stored_policy_that_cannot_be_read_holds_its_job_alone(server, catalog):
    server.policies[EVENTS] = [{**COMPACTION, "content": "{"}]
    resolved = resolve_table(RULES, catalog, EVENTS, {})
    assert [rule.held_by for rule in resolved.rules.jobs] == [
        "the catalog's stored policies cannot be read",
        None,
        None,
    ]
    assert [one.problem for one in resolved.problems] == ["its content is no JSON"]


def test_metadata_that_cannot_be_read_holds_all_jobs(catalog):
    resolved = resolve_table(RULES, catalog, EVENTS, None)
    assert {rule.held_by for rule in resolved.rules.jobs} == {"the table's properties cannot be read"}
