import pytest

from icekeep.errors import ConfigError, OutcomeUnknownError, UnsupportedError, UsageError
from icekeep.runtime import SYSTEM
from icekeep.storage.locations import parse_location
from icekeep.storage.objects.storage import ObjectStorage
from icekeep.storage.objects.stores import open_stores
from kit.cases import for_each


def config(properties, location="s3://bucket/k"):
    return dict(open_stores(parse_location(location), properties).patient.config)


def keys_of(properties):
    provider = open_stores(parse_location("s3://bucket/k"), properties).patient.credential_provider
    return provider and provider()


@pytest.mark.parametrize("prefix", ["s3", "client"])
def test_properties_of_iceberg_java_and_of_pyiceberg_lead_to_the_same(prefix):
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
def test_a_property_that_cannot_be_honoured_is_refused_before_anything_is_sent(properties):
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


def test_what_is_refused_for_one_kind_of_store_does_not_matter_for_another():
    assert config({"s3.acl": "private", "gcs.oauth2.token": "t"}, "gs://bucket/k")["bearer_token"] == "t"
    assert config({"gcs.user-project": "p", "s3.region": "eu-west-3"})["region"] == "eu-west-3"


def test_a_catalog_that_signs_and_gives_keys_is_taken_by_its_keys():
    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b"}
    assert keys_of({**keys, "s3.remote-signing-enabled": "true", "s3.signer": "X"})["access_key_id"] == "a"


@pytest.mark.parametrize("location", ["s3://a bucket/k", "gs://b?x/k", "abfss://f f@acc.dfs.core.windows.net/k"])
def test_a_name_that_no_bucket_can_have_is_refused(location):
    with pytest.raises(UnsupportedError, match="cannot be the name of a bucket"):
        ObjectStorage({}, SYSTEM).read(location)


def test_properties_that_the_client_does_not_take_are_told_without_their_values():
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
