"""One table says which schemes and authorities name one store, and all who compare or open go by it."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from icekeep.storage.objects.stores import bucket_of, open_stores
from icekeep.storage.open import open_storage
from kit.cases import cases, for_each

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
def test_spellings_that_open_one_object_and_no_others_have_one_canonical_form(one, other):
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


def test_every_scheme_has_a_backend_and_spellings_of_one_kind_share_it():
    storage = open_storage({}, SYSTEM)
    for kind, schemes in SCHEMES.items():
        assert len({id(storage.at(f"{scheme}://c@a/k" if kind != "file" else "/k")) for scheme in schemes}) == 1
    assert STORES_OF_KEYS.issubset(SCHEMES)


def test_a_token_that_is_told_for_a_host_is_used_for_each_of_its_spellings():
    properties = {"adls.sas-token.acct.dfs.core.windows.net": "sig=x"}
    for location in (
        "wasbs://c@acct.blob.core.windows.net/k",
        "abfss://c@acct.dfs.core.windows.net/k",
        "az://c@acct/k",
    ):
        assert dict(open_stores(parse_location(location), properties).once.config)["sas_key"] == "sig=x"
