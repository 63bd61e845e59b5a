"""Policies that a server such as Polaris stores, as our catalog reads them and as they come to be in force."""

import json

import pytest

from icekeep.catalog.base import StoredPolicy, StoresPolicies
from icekeep.catalog.open import open_catalog
from icekeep.errors import NotFoundError, UnavailableError
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.configuration.policy_tables import resolve_table
from kit.catalogs import EVENTS, simple_metadata
from kit.rest_server import ENDPOINTS, POLICIES, Fault

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


def test_a_table_that_is_not_there_and_a_server_that_is_out_of_reach_are_told(server, catalog):
    with pytest.raises(NotFoundError, match=r"no table 'db\.none' in catalog 'prod'"):
        catalog.stored_policies(("db", "none"))
    server.read_fault = Fault(applied=False, status=503)
    with pytest.raises(UnavailableError):
        catalog.stored_policies(EVENTS)


def test_what_is_stored_lies_between_the_policy_and_the_layers_of_the_file(server, catalog):
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
