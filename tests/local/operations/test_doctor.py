"""The doctor against servers on this machine: what is well is told as well and nothing is left, what is not is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import icekeep
from icekeep.catalog.open import open_catalog
from icekeep.operations.doctor import examination
from icekeep.operations.doctor.driver import DoctorResult
from kit.object_store import ObjectStore
from kit.rest_server import RestServer, Vending

DB = ("db",)


@pytest.fixture(autouse=True)
def _no_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_has_executors", lambda *_: False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestServer]:
    server = RestServer(tmp_path)
    yield server
    server.close()


def on_s3(store: ObjectStore, bucket: str) -> Any:
    catalog = open_catalog("lake", {"type": "hadoop", "warehouse": f"s3://{bucket}/wh", **store.properties()})
    catalog.create_namespace(DB, exists_ok=True)
    return catalog


def unwell(result: DoctorResult) -> dict[str, str]:
    """But for what the test's machine is or has."""
    about = [one for one in result.findings if one.about not in ("driver", "executors")]
    return {one.check: one.status for one in about if one.status != "ok"}


def message(result: DoctorResult, check: str) -> str:
    (found,) = [one.message for one in result.findings if one.check == check]
    return found


def test_a_catalog_in_a_bucket_is_well_and_left_as_it_was(store: ObjectStore) -> None:
    bucket = store.new_bucket()
    catalog = on_s3(store, bucket)
    before = store.keys(bucket)
    result = icekeep.doctor(catalog, namespace=DB)
    assert unwell(result) == {}
    assert {one.check for one in result.findings} >= {"conditional put", "list", "clock", "commit", "drop table"}
    assert store.keys(bucket) == before


def test_a_store_that_ignores_conditions_is_told(store: ObjectStore) -> None:
    catalog = on_s3(store, store.new_bucket())
    store.ignores_conditions = True
    result = icekeep.doctor(catalog)
    assert unwell(result) == {"conditional put": "wrong", "commit": "not-tried"}
    assert "honours If-None-Match" in message(result, "conditional put")


def test_a_store_that_may_not_be_written_is_told(store: ObjectStore) -> None:
    bucket = store.new_bucket()
    catalog = on_s3(store, bucket)
    store.answer("PUT", ".icekeep/doctor", 403, "AccessDenied")
    result = icekeep.doctor(catalog)
    assert unwell(result) == {"put": "wrong", "commit": "not-tried"}
    assert "denies access" in message(result, "put")
    assert not [key for key in store.keys(bucket) if "doctor" in key]


def test_a_bucket_that_is_not_there_is_told(store: ObjectStore) -> None:
    catalog = open_catalog("lake", {"type": "hadoop", "warehouse": "s3://no-such-bucket/wh", **store.properties()})
    assert unwell(icekeep.doctor(catalog))["reached"] == "wrong"


@pytest.mark.slow
def test_a_store_that_is_down(tmp_path: Path) -> None:
    properties = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    warehouse = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://bucket/wh"}
    catalog = open_catalog("lake", {"type": "sql", **warehouse, **properties})
    catalog.create_namespace(DB)
    result = icekeep.doctor(catalog, namespace=DB)
    assert unwell(result) == {"reached": "unavailable", "commit": "not-tried"}


def test_doctor_leaves_rest_server_location_unchanged(server: RestServer) -> None:
    catalog = open_catalog("server", server.properties)
    catalog.create_namespace(DB)
    before = {path for path in server.directory.rglob("*") if path.is_file()}
    result = icekeep.doctor(catalog, namespace=DB)
    assert unwell(result) == {}
    assert (server.pointers, {p for p in server.directory.rglob("*") if p.is_file()}) == ({}, before)


@pytest.mark.parametrize("has_warehouse", [True, False])
def test_doctor_tries_keys_vended_by_rest_server(
    tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_warehouse: bool
) -> None:
    vending = Vending(tmp_path, store)
    warehouse = {"warehouse": f"s3://{vending.bucket}/wh"} if has_warehouse else {}
    catalog: Any = open_catalog("vending", {**vending.properties, **warehouse})
    monkeypatch.setattr(catalog, "default_location", lambda name: f"s3://{vending.bucket}/wh/{name[-1]}")
    catalog.create_namespace(DB)
    result = icekeep.doctor(catalog, namespace=DB)
    vending.close()
    assert unwell(result) == {}
    assert len(vending.keys) > 0
    assert {one.about.partition("/wh/")[0] for one in result.findings if one.check == "put"} == {
        f"store s3://{vending.bucket}"
    }
    assert store.keys(vending.bucket) == []


def test_a_rest_server_that_is_down_is_told(server: RestServer) -> None:
    properties = server.properties
    server.close()
    result = icekeep.doctor(open_catalog("server", properties), namespace=DB)
    assert unwell(result) == {"namespaces": "unavailable", "commit": "not-tried"}
    assert result.status in ("unavailable", "wrong")
