import datetime
import ipaddress
import json
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyiceberg.table import CommitTableRequest

from icekeep.catalog.clients.rest_protocol import ASSERT_CREATE, creation_updates, requirement_to_json, updates_to_json
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, UnsupportedError, UsageError
from icekeep.spec.metadata import metadata_from_json, metadata_to_json
from icekeep.spec.partitioning import spec_from_json
from icekeep.spec.schema import schema_from_json
from icekeep.spec.snapshots import PartitionStatisticsFile, Snapshot, SnapshotRef, StatisticsFile, object_from_json
from icekeep.spec.sorting import sort_order_from_json
from icekeep.spec.updates import (
    AddEncryptionKey,
    AddPartitionSpec,
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUuid,
    AssignUuid,
    RaiseCounters,
    RemoveEncryptionKey,
    RemovePartitionSpecs,
    RemovePartitionStatistics,
    RemoveProperties,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveStatistics,
    RestoreSnapshots,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetPartitionStatistics,
    SetProperties,
    SetSnapshotRef,
    SetStatistics,
    Update,
    UpgradeFormatVersion,
    apply_updates,
)
from icekeep.storage.open import open_storage
from kit.cases import for_each
from kit.catalogs import simple_metadata
from kit.rest_server import RestServer

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
SCHEMA = {
    "type": "struct",
    "schema-id": 1,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long", "doc": "the key", "initial-default": 7},
        {"id": 2, "name": "price", "required": False, "type": "decimal(9, 2)", "write-default": "1.50"},
        {"id": 3, "name": "at", "required": False, "type": "timestamptz_ns"},
        {
            "id": 4,
            "name": "tags",
            "required": False,
            "type": {
                "type": "map",
                "key-id": 5,
                "key": "string",
                "value-id": 6,
                "value-required": False,
                "value": {"type": "list", "element-id": 7, "element-required": True, "element": "fixed[4]"},
            },
        },
    ],
}
SPEC = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[16]"}]}
ORDER = {
    "order-id": 1,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}],
}
SNAPSHOT = {
    "snapshot-id": 8,
    "parent-snapshot-id": 7,
    "sequence-number": 3,
    "timestamp-ms": 1700000000000,
    "manifest-list": "s3://b/m.avro",
    "summary": {"operation": "replace", "icekeep.commit-id": "c"},
    "schema-id": 1,
    "first-row-id": 0,
    "added-rows": 9,
}
REF = {"snapshot-id": 8, "type": "branch", "min-snapshots-to-keep": 2, "max-snapshot-age-ms": 3, "max-ref-age-ms": 4}
STATISTICS = {
    "snapshot-id": 8,
    "statistics-path": "s3://b/s.puffin",
    "file-size-in-bytes": 10,
    "file-footer-size-in-bytes": 5,
    "blob-metadata": [
        {
            "type": "apache-datasketches-theta-v1",
            "snapshot-id": 8,
            "sequence-number": 3,
            "fields": [1],
            "properties": {"ndv": "3"},
        },
    ],
}
PARTITION_STATISTICS = {"snapshot-id": 8, "statistics-path": "s3://b/p.parquet", "file-size-in-bytes": 10}

UPDATES = {
    AssignUuid(UUID): {"action": "assign-uuid", "uuid": UUID},
    UpgradeFormatVersion(3): {"action": "upgrade-format-version", "format-version": 3},
    SetLocation("s3://b/t"): {"action": "set-location", "location": "s3://b/t"},
    SetCurrentSchema(-1): {"action": "set-current-schema", "schema-id": -1},
    SetDefaultSpec(1): {"action": "set-default-spec", "spec-id": 1},
    SetDefaultSortOrder(0): {"action": "set-default-sort-order", "sort-order-id": 0},
    RemoveSnapshots((7, 8)): {"action": "remove-snapshots", "snapshot-ids": [7, 8]},
    RemoveSnapshotRef("audit"): {"action": "remove-snapshot-ref", "ref-name": "audit"},
    RemoveProperties(("a", "b")): {"action": "remove-properties", "removals": ["a", "b"]},
    RemovePartitionSpecs((1,)): {"action": "remove-partition-specs", "spec-ids": [1]},
    RemoveSchemas((0,)): {"action": "remove-schemas", "schema-ids": [0]},
    RemoveStatistics(8): {"action": "remove-statistics", "snapshot-id": 8},
    RemovePartitionStatistics(8): {"action": "remove-partition-statistics", "snapshot-id": 8},
}
LARGE_UPDATES = [
    (SetProperties({"a": "1"}), {"action": "set-properties", "updates": {"a": "1"}}),
    (AddSchema(schema_from_json(SCHEMA), 7), {"action": "add-schema", "schema": SCHEMA, "last-column-id": 7}),
    (AddPartitionSpec(spec_from_json(SPEC)), {"action": "add-spec", "spec": SPEC}),
    (AddSortOrder(sort_order_from_json(ORDER)), {"action": "add-sort-order", "sort-order": ORDER}),
    (AddSnapshot(object_from_json(Snapshot, SNAPSHOT, "")), {"action": "add-snapshot", "snapshot": SNAPSHOT}),
    (
        SetSnapshotRef("audit", object_from_json(SnapshotRef, REF, "")),
        {"action": "set-snapshot-ref", "ref-name": "audit", **REF},
    ),
    (
        SetStatistics(object_from_json(StatisticsFile, STATISTICS, "")),
        {"action": "set-statistics", "statistics": STATISTICS, "snapshot-id": 8},
    ),
    (
        SetPartitionStatistics(object_from_json(PartitionStatisticsFile, PARTITION_STATISTICS, "")),
        {"action": "set-partition-statistics", "partition-statistics": PARTITION_STATISTICS},
    ),
]
KEYS = {
    AddEncryptionKey: {"action": "add-encryption-key", "encryption-key": {"key-id": "k"}},
    RemoveEncryptionKey: {"action": "remove-encryption-key", "key-id": "k"},
}
REQUIREMENTS = [
    (AssertTableUuid(UUID), {"type": "assert-table-uuid", "uuid": UUID}),
    (AssertRefSnapshotId("main", 7), {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}),
    (AssertRefSnapshotId("new", None), {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": None}),
    (AssertCurrentSchemaId(0), {"type": "assert-current-schema-id", "current-schema-id": 0}),
    (AssertDefaultSpecId(0), {"type": "assert-default-spec-id", "default-spec-id": 0}),
    (AssertLastAssignedFieldId(2), {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}),
    (
        AssertLastAssignedPartitionId(999),
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
    ),
    (AssertDefaultSortOrderId(0), {"type": "assert-default-sort-order-id", "default-sort-order-id": 0}),
]


def lost(ours, theirs, path=""):
    """The paths at which another model lacks something of ours; spaces and null do not matter."""
    if isinstance(ours, dict):
        known = theirs if isinstance(theirs, dict) else {}
        return [p for key, value in ours.items() for p in lost(value, known.get(key), f"{path}.{key}")]
    if isinstance(ours, list):
        known = [*(theirs or []), *([None] * len(ours))]
        return [p for n, value in enumerate(ours) for p in lost(value, known[n], f"{path}[{n}]")]
    return [] if ours is None or str(ours).replace(" ", "") == str(theirs).replace(" ", "") else [path]


def through_pyiceberg(**parts):
    body = json.dumps({"identifier": {"namespace": ["db"], "name": "t"}, **parts})
    request = CommitTableRequest.model_validate_json(body)
    return request.model_dump(mode="json")


def base():
    return simple_metadata("file:///t")


@for_each(("update", "expected"), [*UPDATES.items(), *LARGE_UPDATES])
def test_updates_match_protocol_and_pyiceberg_reads_them(update, expected):
    (sent,) = updates_to_json(base(), [update])
    assert lost(expected, sent) == lost(sent, expected) == []
    # PyIceberg passes over what is deprecated.
    known = {key: value for key, value in sent.items() if key != "last-column-id"}
    assert lost([known], through_pyiceberg(updates=[sent])["updates"]) == []


def test_every_update_has_its_json():
    known = {type(update) for update in UPDATES} | {type(update) for update, _ in LARGE_UPDATES} | KEYS.keys()
    assert known == set(Update.__subclasses__()) - {RestoreSnapshots, RaiseCounters}


def test_what_the_protocol_has_no_update_for_is_refused():
    with pytest.raises(UnsupportedError, match="a server refuses their old sequence numbers"):
        updates_to_json(base(), [RestoreSnapshots(snapshots=())])
    with pytest.raises(UnsupportedError, match="counters of ids cannot be raised through a REST catalog"):
        updates_to_json(base(), [RaiseCounters(last_column_id=7)])


def test_updates_unknown_to_pyiceberg_match_protocol():
    updates = [AddEncryptionKey({"key-id": "k"}), RemoveEncryptionKey("k")]
    assert updates_to_json(base(), updates) == list(KEYS.values())


@for_each(("last_column_id", "expected"), [(None, 7), (7, 7), (9, 9)])
def test_a_last_column_id_is_always_said(last_column_id, expected):
    """Deprecated as it is, Nessie takes no schema without it."""
    (sent,) = updates_to_json(base(), [AddSchema(schema_from_json(SCHEMA), last_column_id)])
    assert sent["last-column-id"] == expected


def test_snapshots_of_version_1_have_no_sequence_number():
    raw = metadata_to_json(base())
    raw["format-version"] = 1
    (sent,) = updates_to_json(metadata_from_json(raw), [AddSnapshot(object_from_json(Snapshot, SNAPSHOT, ""))])
    assert "sequence-number" not in sent["snapshot"]


@for_each(("requirement", "expected"), REQUIREMENTS)
def test_requirements_match_protocol_and_pyiceberg_reads_them(requirement, expected):
    sent = requirement_to_json(requirement)
    assert sent == expected
    assert lost([sent], through_pyiceberg(requirements=[sent])["requirements"]) == []


def test_creation_updates_make_table_from_any_other():
    """They are what a server applies to nothing: whatever is asked for is in them."""
    metadata = simple_metadata("file:///t", owner="me")
    start = simple_metadata("file:///other")
    made = apply_updates(start, [u for u in creation_updates(metadata) if not isinstance(u, AssignUuid)], now_ms=0)
    assert made.location == metadata.location
    assert made.properties == metadata.properties
    assert made.schema.same_columns(metadata.schema)
    sent = through_pyiceberg(requirements=[ASSERT_CREATE], updates=updates_to_json(None, creation_updates(metadata)))
    assert sent["requirements"] == [{"type": "assert-create"}]
    assert sent["updates"][0] == {"action": "assign-uuid", "uuid": metadata.table_uuid}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The paths of a certificate that vouches for itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "icekeep")])
    began = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + datetime.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    kind, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, none))
    return tuple(map(str, paths))


@pytest.fixture
def encrypted(tmp_path, pair):
    """The properties of a catalog at a server that speaks TLS and wants a certificate."""
    server = RestServer(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    context.load_verify_locations(pair[0])
    context.verify_mode = ssl.CERT_REQUIRED
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    yield {**server.properties, "uri": server.uri.replace("http:", "https:")}
    server.close()


def test_certificates_are_those_that_properties_name(encrypted, pair, monkeypatch):
    # The property is nearer than what the environment says to all programs.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
    shown = {"ssl.client.cert": pair[0], "ssl.client.key": pair[1]}
    assert open_catalog("local", {**encrypted, "ssl.cabundle": pair[0], **shown}).list_namespaces() == []


def test_a_certificate_that_nobody_vouches_for_is_told(encrypted):
    with pytest.raises(
        UsageError,
        match=r"^catalog 'local' cannot be asked at https://127.0.0.1:\d+: its certificate is not trusted here \(self.signed "
        r"certificate\); check the address, or set ssl.cabundle$",
    ):
        open_catalog("local", encrypted).list_namespaces()


def test_a_server_without_tls_is_no_outage(tmp_path):
    server = RestServer(tmp_path)
    with pytest.raises(
        UsageError, match=r"at https://(localhost|127\.0\.0\.1):\d+: it speaks no TLS; give an address with http://$"
    ):
        open_catalog("local", {**server.properties, "uri": server.uri.replace("http:", "https:")}).list_namespaces()
    server.close()


def test_so_is_that_of_a_store(encrypted):
    keys = {"s3.region": "x", "s3.access-key-id": "a", "s3.secret-access-key": "bcde"}
    with pytest.raises(
        UsageError, match=r"cannot create 's3://b/x': the store's certificate is not trusted here; check the endpoint"
    ):
        open_storage({"s3.endpoint": encrypted["uri"], **keys}).create("s3://b/x", b"data")


@pytest.mark.parametrize("key", ["ssl.cabundle", "ssl.client.cert", "ssl.client.key"])
def test_a_file_that_is_not_there_is_a_configuration_error(encrypted, key):
    with pytest.raises(ConfigError, match=f"local.{key}.* is '/nowhere'; give the path of a file"):
        open_catalog("local", {**encrypted, key: "/nowhere"}).list_namespaces()
