import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import ConfigError, OutcomeUnknownError, UnsupportedError, UsageError
from icekeep.maintenance.delete.locations import DeletableLocations
from icekeep.runtime import SYSTEM
from icekeep.storage.location_keys import location_keys, loose_keys
from icekeep.storage.locations import (
    AZURE,
    GCS,
    HDFS,
    S3,
    SCHEMES,
    STORES_OF_KEYS,
    canonical,
    is_under,
    parse_location,
    store_authorities,
    store_authority,
    store_kind,
)
from icekeep.storage.objects.storage import ObjectStorage
from icekeep.storage.objects.stores import bucket_of, open_stores
from icekeep.storage.open import open_storage
from kit.cases import cases, for_each


def config(properties, location="s3://bucket/k"):
    return dict(open_stores(parse_location(location), properties).patient.config)


def keys_of(properties):
    provider = open_stores(parse_location("s3://bucket/k"), properties).patient.credential_provider
    return provider and provider()


@pytest.mark.parametrize("prefix", ["s3", "client"])
def test_java_and_pyiceberg_property_names_are_equivalent(prefix):
    keys = {f"{prefix}.access-key-id": "a", f"{prefix}.secret-access-key": "b", f"{prefix}.session-token": "c"}
    given = keys_of(keys)
    assert (given["access_key_id"], given["secret_access_key"], given["token"]) == ("a", "b", "c")
    assert config({f"{prefix}.region": "eu-west-3"})["region"] == "eu-west-3"


def test_keys_that_are_given_get_no_token_from_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
    assert keys_of({"s3.access-key-id": "a", "s3.secret-access-key": "b"})["token"] is None
    assert keys_of({}) is None


@for_each(
    ("properties", "expected"),
    [
        ({"s3.sse.type": "none"}, {}),
        ({"s3.sse.type": "s3"}, {"server_side_encryption": "AES256"}),
        ({"s3.sse.type": "kms", "s3.sse.key": "k"}, {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k"}),
        ({"s3.sse.type": "dsse-kms"}, {"server_side_encryption": "aws:kms:dsse"}),
        (
            {"s3.server-side-encryption": "aws:kms", "s3.sse-kms-key-id": "k"},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k"},
        ),
        ({"s3.anonymous": "true"}, {"skip_signature": True}),
        ({"s3.endpoint": "http://h:1", "s3.path-style-access": "true"}, {"endpoint": "http://h:1"}),
        (
            {"s3.endpoint": "http://h:1", "s3.force-virtual-addressing": "true"},
            {"endpoint": "http://bucket.h:1", "virtual_hosted_style_request": True},
        ),
    ],
)
def test_properties_of_s3_are_honoured(properties, expected):
    made = config(properties)
    names = {"server_side_encryption", "sse_kms_key_id", "skip_signature", "endpoint", "virtual_hosted_style_request"}
    assert {name: str(value).lower() for name, value in made.items() if name in names} == {
        name: str(value).lower() for name, value in expected.items()
    }


@for_each(
    "properties",
    [
        {"s3.sse.type": "client"},
        {"s3.sse.type": "kms", "s3.server-side-encryption": "AES256"},
        {"s3.sse-kms-key-id": "k"},
        {"s3.acl": "private"},
        {"s3.delete-enabled": "false"},
        {"s3.delete.tags.gone": "yes"},
        {"s3.write.tags.keep": "yes"},
        {"s3.remote-signing-enabled": "true"},
        {"s3.signer": "S3V4RestSigner"},
        {"client.credentials-provider": "com.example.Mine"},
        {"s3.access-points.bucket": "arn:aws:s3:x"},
        {"client.assume-role.arn": "arn:aws:iam::1:role/x"},
        {"s3.access-key-id": "a"},
        {"s3.anonymous": "perhaps"},
        {"s3.connect-timeout": "soon"},
        {"s3.request-timeout": "0"},
        {"s3.endpoint": "minio:9000"},
        {"s3.endpoint": "http://a b/"},
        {"s3.endpoint": "http://300.1.1.1:9000"},
        {"s3.endpoint": "http://127.0.0.1:99999"},
        {"s3.endpoint": "http://[::1"},
        {"s3.endpoint": "http://a%b:1"},
        {"s3.proxy-uri": "http://1.2.3:1"},
        {"s3.path-style-access": "false", "s3.endpoint": "http://127.0.0.1:9000"},
        {"s3.force-virtual-addressing": "true", "s3.endpoint": "http://[::1]:9000"},
        {"s3.region": "us-east-1\n"},
        {"s3.session-token": "a\nb", "s3.access-key-id": "a", "s3.secret-access-key": "b"},
    ],
)
def test_unsupported_property_is_refused_before_any_request(properties):
    with pytest.raises((UnsupportedError, UsageError), match=next(iter(properties))) as raised:
        ObjectStorage(properties, SYSTEM).read("s3://bucket/k")
    assert "\n" not in str(raised.value)


@for_each(
    ("location", "properties", "expected"),
    [
        ("gs://bucket/k", {"gcs.oauth2.token": "t"}, {"bearer_token": "t", "bucket": "bucket"}),
        ("gs://bucket/k", {"gcs.service.host": "http://h:1", "gcs.no-auth": "true"}, {"base_url": "http://h:1"}),
        (
            "abfss://files@acc.dfs.core.windows.net/k",
            {"adls.account-key": "a2V5"},
            {"account_name": "acc", "container_name": "files", "endpoint": "https://acc.blob.core.windows.net"},
        ),
        (
            "wasbs://files@acc.blob.core.chinacloudapi.cn/k",
            {"adls.sas-token.acc.blob.core.chinacloudapi.cn": "?sig=x"},
            {"sas_key": "sig=x", "endpoint": "https://acc.blob.core.chinacloudapi.cn"},
        ),
        (
            "abfs://files/k",
            {"adls.account-name": "acc", "adls.blob-storage-authority": "h:1", "adls.blob-storage-scheme": "http"},
            {"container_name": "files", "endpoint": "http://h:1/acc"},
        ),
    ],
)
def test_properties_of_other_stores_are_honoured(location, properties, expected):
    made = config(properties, location)
    assert {name: made.get(name) for name in expected} == expected


def test_property_refused_for_one_store_is_ignored_for_others():
    assert config({"s3.acl": "private", "gcs.oauth2.token": "t"}, "gs://bucket/k")["bearer_token"] == "t"
    assert config({"gcs.user-project": "p", "s3.region": "eu-west-3"})["region"] == "eu-west-3"


def test_signing_catalog_with_keys_is_used_by_its_keys():
    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b"}
    assert keys_of({**keys, "s3.remote-signing-enabled": "true", "s3.signer": "X"})["access_key_id"] == "a"


@pytest.mark.parametrize("location", ["s3://a bucket/k", "gs://b?x/k", "abfss://f f@acc.dfs.core.windows.net/k"])
def test_a_name_that_no_bucket_can_have_is_refused(location):
    with pytest.raises(UnsupportedError, match="cannot be the name of a bucket"):
        ObjectStorage({}, SYSTEM).read(location)


def test_rejected_properties_are_reported_without_values():
    properties = {"adls.account-name": "acc", "adls.account-key": "no base64 key!"}
    with pytest.raises(UsageError, match="cannot reach container 'files': its properties are not accepted") as raised:
        ObjectStorage(properties, SYSTEM).read("abfs://files/k")
    assert "no base64 key!" not in f"{raised.value!r} {raised.value.__cause__!r} {raised.value.facts}"


def test_a_container_without_an_account_names_the_property():
    with pytest.raises(
        ConfigError, match=r"'adls.account-name': is missing; give it, or name the account in locations"
    ):
        ObjectStorage({}, SYSTEM).read("abfs://files/k")


@for_each(
    ("key", "location", "properties"),
    [
        ("gcs.service.host", "gs://bucket/k", {"gcs.service.host": "http://300.1.1.1"}),
        ("gcs.oauth2.token", "gs://bucket/k", {"gcs.oauth2.token": "t\n", "gcs.service.host": "http://127.0.0.1:1"}),
        ("adls.token", "abfs://files/k", {"adls.account-name": "acc", "adls.token": "t\r"}),
        *(
            ("adls.blob-storage-authority", "abfs://files/k", {"adls.account-name": "acc", **address})
            for address in (
                {"adls.blob-storage-authority": "300.1.1.1:1"},
                {"adls.blob-storage-authority": "a b"},
                {"adls.blob-storage-authority": "http://127.0.0.1:1"},
                {"adls.blob-storage-authority": "127.0.0.1:1", "adls.blob-storage-scheme": "ftp"},
            )
        ),
    ],
)
def test_what_the_client_would_panic_at_is_a_wrong_setting(key, location, properties):
    with pytest.raises(ConfigError, match=f"configuration key '{key}': ") as raised:
        ObjectStorage(properties, SYSTEM).read(location)
    assert "\n" not in str(raised.value)


def test_a_panic_of_the_client_is_an_error_of_ours():
    """It is no `Exception`, and would pass by all that catches one."""
    properties = {"adls.account-name": "acc", "adls.tenant-id": "a b", "adls.client-id": "c", "adls.client-secret": "s"}
    storage = ObjectStorage({**properties, "adls.blob-storage-authority": "127.0.0.1:1"}, SYSTEM)
    with pytest.raises(
        UsageError, match="cannot read 'abfs://files/k': the client of the store has panicked; look for"
    ):
        storage.read("abfs://files/k")
    with pytest.raises(OutcomeUnknownError, match=r"cannot tell whether .*: the client of the store has panicked"):
        storage.create("abfs://files/k", b"")


def test_a_machine_without_credentials_is_told(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UsageError, match="no credentials are given, and this machine has none"):
        ObjectStorage({"s3.region": "eu-west-3"}, SYSTEM).create("s3://bucket/k", b"")


@pytest.mark.parametrize("name", ["s3.profile-name", "client.profile-name"])
def test_a_profile_is_refused_with_what_to_give_in_its_place(name):
    with pytest.raises(UnsupportedError, match=r"aws configure export-credentials --format env .* by AWS_PROFILE"):
        config({name: "prod"}, "s3://bucket/k")


ACCOUNTS = ["acct", "other"]
HOSTS = ["", ".dfs.core.windows.net", ".blob.core.windows.net", ".DFS.core.windows.net"]
FOREIGN_HOSTS = [".dfs.core.chinacloudapi.cn", ".blob.core.chinacloudapi.cn"]
BUCKETS = st.sampled_from(["b", "Bucket", "b2", "a.dfs.b"])
CONTAINERS = st.builds(
    "{}@{}{}".format,
    st.sampled_from(["c", "a.blob.b"]),
    st.sampled_from(ACCOUNTS),
    st.sampled_from(HOSTS + FOREIGN_HOSTS),
)
NAMENODES = st.sampled_from(["nn1", "nn1:8020", "NN1", "nn2:9000", "ha", ""])
AUTHORITIES = {S3: BUCKETS, GCS: BUCKETS, AZURE: CONTAINERS, HDFS: NAMENODES}
NAMES = st.sampled_from(["k", "d/k", "d2/x"])


@st.composite
def locations(draw, kinds=(S3, GCS, AZURE, HDFS)):
    kind = draw(st.sampled_from(kinds))
    scheme = draw(st.sampled_from(SCHEMES[kind]))
    return f"{scheme}://{draw(AUTHORITIES[kind])}/{draw(NAMES)}"


def opened(location):
    """What the client of a location asks for which object: the kind of store, its endpoint, the bucket, the key."""
    parsed = parse_location(location)
    store = open_stores(parsed, {"s3.region": "eu-west-3", "gcs.no-auth": "true", "adls.anon": "true"}).patient
    config = dict(store.config)
    container = config.get("container_name") or config.get("bucket")
    account = config.get("account_name")
    # Without an address the client takes the account's own.
    endpoint = config.get("endpoint") or (f"https://{account}.blob.core.windows.net" if account else "")
    return type(store).__name__, endpoint.lower(), container, parsed.path


@pytest.mark.slow
@cases(200)
@given(locations((S3, GCS, AZURE)), locations((S3, GCS, AZURE)))
def test_canonical_form_is_shared_by_spellings_of_one_object(one, other):
    assert (opened(one) == opened(other)) == (canonical(one) == canonical(other))


@cases(200)
@given(st.lists(locations(), min_size=2, max_size=6))
def test_keys_of_columns_agree_with_the_canonical_form(some):
    array = pa.array(some)
    forms = [canonical(location) for location in some]
    keys = location_keys(array).tolist()
    _, prefixes = loose_keys(array)
    for first in range(len(some)):
        for second in range(first):
            assert (keys[first] == keys[second]) == (forms[first] == forms[second])
            if forms[first] == forms[second]:
                assert prefixes[first] == prefixes[second]


@cases(200)
@given(locations(), locations())
def test_the_territory_agrees_with_the_canonical_form(root, location):
    root = root.removesuffix("/k") + "/t"
    below = location.removesuffix("/k") + "/t/f"
    mine = DeletableLocations(roots=(root,))
    assert mine.holds(below) == is_under(below, root)
    assert mine.mask(pa.array([below])).tolist() == [mine.holds(below)]


@for_each(
    "spellings",
    [
        ("gs://b/f", "gcs://b/f"),
        ("s3://b/f", "s3a://b/f", "S3N://b/f"),
        (
            "abfs://c@acct.dfs.core.windows.net/f",
            "abfss://c@acct.blob.core.windows.net/f",
            "wasb://c@acct.blob.core.windows.net/f",
            "wasbs://c@ACCT.blob.core.windows.net/f",
            "az://c@acct.dfs.core.windows.net/f",
            "abfss://c@acct/f",
        ),
        ("hdfs://nn1/f", "hdfs://nn1:8020/f", "hdfs://NN1:8020//f"),
    ],
)
def test_names_of_one_store_are_one(spellings):
    assert len({canonical(s) for s in spellings}) == 1
    assert len({bucket_of(parse_location(s)) for s in spellings}) == 1


@for_each(
    ("one", "other"),
    [
        ("s3://b/f", "gs://b/f"),
        ("abfs://c@acct/f", "abfs://c@other/f"),
        ("abfs://c@acct/f", "abfs://d@acct/f"),
        ("abfs://c@acct/f", "abfs://c@acct.dfs.core.chinacloudapi.cn/f"),
        ("abfs://a.dfs.b@acct/f", "abfs://a.blob.b@acct/f"),
        ("s3://B/f", "s3://b/f"),
        ("hdfs://nn1:9000/f", "hdfs://nn1/f"),
        # Only a property says which account it is.
        ("az://c/f", "az://c@acct/f"),
    ],
)
def test_names_that_may_be_of_two_stores_are_two(one, other):
    assert canonical(one) != canonical(other)


@cases(200)
@given(locations())
def test_each_spelling_of_a_store_is_told_and_stands_for_it(location):
    parsed = parse_location(location)
    kind = store_kind(parsed.scheme)
    authority = store_authority(kind, parsed.authority)
    spellings = store_authorities(kind, authority)
    assert {store_authority(kind, one) for one in spellings} == {authority}
    assert parsed.authority in spellings or parsed.authority.lower() in spellings
    assert canonical(canonical(location)) == canonical(location)


def test_every_scheme_has_backend_shared_within_kind():
    storage = open_storage({}, SYSTEM)
    for kind, schemes in SCHEMES.items():
        assert len({id(storage.at(f"{scheme}://c@a/k" if kind != "file" else "/k")) for scheme in schemes}) == 1
    assert STORES_OF_KEYS.issubset(SCHEMES)


def test_token_for_host_applies_to_all_its_spellings():
    properties = {"adls.sas-token.acct.dfs.core.windows.net": "sig=x"}
    for location in (
        "wasbs://c@acct.blob.core.windows.net/k",
        "abfss://c@acct.dfs.core.windows.net/k",
        "az://c@acct/k",
    ):
        assert dict(open_stores(parse_location(location), properties).once.config)["sas_key"] == "sig=x"
