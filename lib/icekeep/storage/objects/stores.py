"""Clients of object stores, by the catalog properties that users of Iceberg Java and PyIceberg write.

What is not given comes from where the store's own tools find it: environment variables, then the machine's identity. A
property that guards data or decides who may see it is honoured or refused, never passed over.

Keys with empty parts (`db//events/f`), which Hive and Glue make below a database whose location ends with a slash, need
more: the client takes a key apart at its slashes and would put it together without the empty parts, and so read, write
or delete another object. What is before a key in an address it leaves alone. So all of a key up to its last empty part
is made a part of the bucket's address, its root, and what is behind that is an ordinary key; such names are listed by
botocore.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from icekeep.errors import ConfigError, IcekeepError, UnavailableError, UnsupportedError, UsageError, brought_by
from icekeep.spec.types import DAY_SECONDS
from icekeep.storage.locations import (
    AZURE,
    GCS,
    S3,
    STORES_OF_KEYS,
    Location,
    parse_location,
    store_authorities,
    store_authority,
    store_kind,
)
from icekeep.storage.objects.errors import (
    DENIAL_CODES,
    IDENTITY_CODES,
    UNSENDABLE,
    may_be_expired,
    no_bucket,
    without_panics,
)
from icekeep.storage.vended import VendedProperties

_SENDS_MAX = 6
_ENDED = IDENTITY_CODES | {"RequestExpired", "400", "401", "403"}


class RawLister:
    """Lists one bucket; `config` and `credentials` are as the other client is given them."""

    def __init__(
        self,
        bucket: str,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        properties: Mapping[str, str],
        vended: VendedProperties | None,
    ) -> None:
        self._bucket, self._config, self._options = bucket, config, options
        self._properties, self._vended = properties, vended
        self._made: tuple[Mapping[str, str], Any] | None = None

    def page(self, start: str, after: str, count: int) -> tuple[Sequence[Any], str]:
        """Objects whose names begin with `start`, behind a name, and the last name looked at; nothing if none are left.

        Markers of directories, whose names end with a slash, are left out.

        Raises:
            UsageError: botocore is not installed, or the store denies access.
            UnsupportedError: a name has `.` or `..` as a part, or a control character.
        """

        def ask() -> Any:
            return self._client().list_objects_v2(Bucket=self._bucket, Prefix=start, StartAfter=after, MaxKeys=count)

        try:
            answer = (
                ask() if self._vended is None else self._vended.ask(ask, lambda error: _answer_of(error)[0] in _ENDED)
            )
        except IcekeepError:
            raise
        except Exception as error:
            raise _translated(error, f"s3://{self._bucket}/{start}") from error
        listed = answer.get("Contents", ())
        objects = [
            {"path": one["Key"], "size": one["Size"], "last_modified": one["LastModified"]}
            for one in listed
            if not one["Key"].endswith("/")
        ]
        for key in (one["path"] for one in objects):
            if UNSENDABLE.search(key) or any(part in (".", "..") for part in key.split("/")):
                location = f"s3://{self._bucket}/{key}"
                raise UnsupportedError(
                    f"cannot list {location!r}: the name of that object has the part '.' or '..' or a control character, "
                    "which cannot be addressed; rename or remove it",
                    location=location,
                )
        return objects, listed[-1]["Key"] if listed and answer.get("IsTruncated") else ""

    def _client(self) -> Any:
        properties = self._properties if self._vended is None else self._vended.current()
        if self._made is None or self._made[0] is not properties:
            self._made = (properties, _made_client(self._config, self._options, properties))
        return self._made[1]


def _made_client(config: Mapping[str, Any], options: Mapping[str, Any], properties: Mapping[str, str]) -> Any:
    try:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise UsageError(
            f"names with empty parts (a//b) are listed by botocore, which is not installed: {brought_by('catalogs')}",
            module="botocore",
        ) from error
    given = {
        name: _first(properties, f"s3.{key}", f"client.{key}")
        for name, key in (
            ("aws_access_key_id", "access-key-id"),
            ("aws_secret_access_key", "secret-access-key"),
            ("aws_session_token", "session-token"),
        )
    }
    is_virtual = bool(config.get("virtual_hosted_style_request"))
    more: dict[str, Any] = {"signature_version": UNSIGNED} if config.get("skip_signature") else {}
    if options.get("proxy_url"):
        more["proxies"] = dict.fromkeys(("http", "https"), options["proxy_url"])
    if options.get("connect_timeout"):
        more["connect_timeout"] = options["connect_timeout"].total_seconds()
    return botocore.session.get_session().create_client(
        "s3",
        region_name=config.get("region") or None,
        endpoint_url=_first(properties, "s3.endpoint"),
        config=Config(
            read_timeout=options["timeout"].total_seconds(),
            retries={"mode": "standard", "total_max_attempts": _SENDS_MAX},
            s3={"addressing_style": "virtual" if is_virtual else "path"},
            **more,
        ),
        **given,
    )


def _first(properties: Mapping[str, str], *names: str) -> str | None:
    return next((properties[name] for name in names if properties.get(name)), None)


def _answer_of(error: BaseException) -> tuple[str, int | None]:
    """The store's code and the status of an answer that botocore has made an error of."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return "", None
    return str(answer.get("Error", {}).get("Code", "")), answer.get("ResponseMetadata", {}).get("HTTPStatusCode")


def _translated(error: Exception, location: str) -> IcekeepError:
    """The error of ours; nothing of botocore's words is told but the store's code."""
    (code, status), message = _answer_of(error), f"cannot list {location!r}"
    if code == "NoSuchBucket":
        return no_bucket(message, location)
    is_without = type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")
    if is_without or status in (401, 403) or code in _ENDED | DENIAL_CODES:
        return UsageError(
            f"{message}: the store denies access ({code or 'no credentials'}); check the credentials and what they may do",
            location=location,
        )
    return UnavailableError(
        f"{message}: the request to the store failed ({code or type(error).__name__})", location=location
    )


_SAFE = "/~"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = "us-east-1"
"""What the client takes where nothing says which."""


def has_empty_parts(key: str) -> bool:
    """Whether a key has an empty part at its beginning or in its middle."""
    return key.startswith("/") or "//" in key


def taken_apart(key: str) -> tuple[str, str]:
    """A key's root, which begins and ends with a slash, and what is behind it; together with a slash between them the key.

    >>> taken_apart("db//events/f"), taken_apart("/f")
    (('/db/', 'events/f'), ('/', 'f'))
    """
    absolute = f"/{key}"
    at = absolute.rfind("//")
    return absolute[: at + 1], absolute[at + 2 :]


def rooted(bucket: str, root: str, config: Mapping[str, Any], source_root: str = "") -> tuple[str, dict[str, Any]]:
    """Name and configuration of a bucket for the client that addresses what is below a root.

    Args:
        root: of the objects that are read, written and deleted.
        source_root: of those that are copied, which the client addresses by the bucket's name.

    Raises:
        UnsupportedError: the client would address other objects than these.
    """
    region = config.get("region") or next((os.environ[name] for name in _REGIONS if os.environ.get(name)), _REGION)
    endpoint = config.get("endpoint") or next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
    endpoint = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
    if not config.get("virtual_hosted_style_request"):
        endpoint = f"{endpoint}/{bucket}"
    elif not config.get("endpoint"):
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    address = endpoint + quote(root, safe=_SAFE)
    _check_address(address, region)
    made = {**config, "region": region, "endpoint": address, "virtual_hosted_style_request": True}
    return bucket + quote(source_root, safe=_SAFE), made


def _check_address(address: str, region: str) -> None:
    """Ask the client, which sends nothing for that, what it makes of an address."""
    keys = {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"}
    config: Any = {"region": region, "endpoint": address, "virtual_hosted_style_request": True, **keys}
    store = S3Store("bucket", config=config, client_options={"allow_http": True})
    path = urlsplit(obstore.sign(store, "GET", "a/b", timedelta(seconds=1))).path
    if path != urlsplit(f"{address}/a/b").path:
        raise UnsupportedError(f"objects below {address!r} cannot be addressed: the client would ask for {path!r}")


T = TypeVar("T")
_Credentials: TypeAlias = Callable[[Mapping[str, str]], dict[str, Any]]

_DIRECTORY_BUCKETS = ("--x-s3", "--xa-s3")
"""How their names end, and those of their access points."""

_NAME = re.compile(r"[A-Za-z0-9$_][A-Za-z0-9._$-]*")
_ADDRESS = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_HOST = re.compile(r"[^%\s<>\\^|`{}\[\]]+")
_REQUEST_TIMEOUT_S = 120.0
_ALWAYS_ASK_AGAIN = datetime.fromtimestamp(0, UTC)
"""When credentials that a catalog hands out end, as the client is told: so it asks us before each request what holds now."""

_RETRIES = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=8), "base": 3},
}
"""Each wait is drawn, up to three times the one before it: about twenty seconds in all, in which a gateway restarts, and a minute
at most."""


_PROFILE = (
    "a profile of the AWS tools; give its keys in the environment, as aws configure export-credentials --format env prints them, "
    "and its name to Glue and REST by AWS_PROFILE"
)

_REFUSED = {
    "s3.acl": "the access list of new objects",
    "s3.remote-signing-enabled": "signing by a catalog",
    "s3.signer": "signing by a catalog",
    "s3.access-grants.enabled": "access grants",
    "s3.role-arn": "assuming a role",
    "client.role-arn": "assuming a role",
    "client.assume-role.arn": "assuming a role",
    "s3.profile-name": _PROFILE,
    "client.profile-name": _PROFILE,
    "client.credentials-provider": "a class of Java's that finds credentials",
    "client.factory": "a class of Java's that makes clients",
    "s3.client-factory-impl": "a class of Java's that makes clients",
    "s3.sse.md5": "a key's checksum of its own",
    "gcs.encryption-key": "encryption with a key of the customer's",
    "gcs.decryption-key": "encryption with a key of the customer's",
    "gcs.user-project": "buckets whose readers pay",
    "gcs.requester-pays": "buckets whose readers pay",
    "adls.connection-string": "a connection string; give adls.account-name and adls.account-key in its place",
    "adls.credential": "a credential without a kind; give adls.account-key, adls.sas-token or adls.token in its place",
}
"""Properties that would change who may read or write what, by what they ask for."""

_REFUSED_PREFIXES = {
    "s3.access-points.": "access points in place of buckets",
    "adls.connection-string.": "a connection string",
    "s3.write.tags.": "tags on new objects, by which a bucket's rules may act",
    "s3.delete.tags.": "tags on objects instead of deleting them",
}
_SSE_TYPES = {"kms": "aws:kms", "dsse-kms": "aws:kms:dsse", "s3": "AES256", "custom": "sse-c"}


class Stores(NamedTuple):
    """One bucket's clients."""

    patient: ObjectStore
    """Sends a request again when it fails for a reason that may pass."""

    once: ObjectStore
    """Sends each request one time, so that its answer is about that one."""

    lists_in_order: bool = False
    """A listing has names in the order of their bytes, and may start behind any."""

    deletes_many: bool = True
    """The store knows a request that deletes many objects."""

    vended: VendedProperties | None = None
    """Where the clients' credentials come from, if a catalog hands them out."""

    raw_page: Callable[[str, str, int], tuple[Sequence[Any], str]] | None = None
    """Lists names as they are; see `RawLister.page`."""

    def ask(self, request: Callable[[], T]) -> T:
        """Send a request; once more with new credentials if the store refuses those that a catalog handed out.

        What was refused so was not carried out, so that it is safe for every request.
        """
        if self.vended is None:
            return without_panics(request)
        return self.vended.ask(partial(without_panics, request), may_be_expired)


def parsed_location(location: str) -> Location:
    """A location in an object store; raises `UnsupportedError` where it is in none."""
    parsed = parse_location(location)
    if store_kind(parsed.scheme) not in STORES_OF_KEYS or not parsed.authority:
        raise UnsupportedError(f"location {location!r} is not in an object store", location=location)
    return parsed


def bucket_of(location: Location) -> tuple[str, str]:
    """The kind of store and the authority, equal for all spellings that name one bucket."""
    kind = store_kind(location.scheme)
    return kind, store_authority(kind, location.authority)


def check_process() -> None:
    """Refuse a process that was forked from one that uses the client: its threads stayed behind, and calls would hang.

    Raises:
        UnsupportedError: it was.
    """
    _used_in.setdefault("process", os.getpid())
    if _used_in["process"] != os.getpid():
        raise UnsupportedError(
            "this process was forked from one that uses object stores, and cannot use them; start processes with "
            "'spawn' or 'forkserver'"
        )


_used_in: dict[str, int] = {}


def open_stores(
    location: Location,
    properties: Mapping[str, str],
    vended: VendedProperties | None = None,
    roots: tuple[str, str] = ("", ""),
) -> Stores:
    """The clients for the bucket or container of a location; `vended` are the same properties if they are renewed.

    Args:
        roots: for keys of S3 with empty parts, those of an object and of the one that it is copied from.

    Raises:
        ConfigError: a property makes no sense.
        UsageError: the client does not accept them.
        UnsupportedError: a property asks for protection that icekeep cannot give.
    """
    kind, _ = bucket_of(location)
    _refuse_unsupported(kind, properties)
    make: Any
    more: dict[str, Any] = {}
    single: dict[str, Any] = {}
    credentials: _Credentials
    if kind == S3:
        make, bucket, config = S3Store, location.authority, _s3_config(location.authority, properties)
        single = {"disable_bulk_delete": True}
        credentials = _s3_credentials
    elif kind == GCS:
        make, bucket, config = GCSStore, location.authority, _gcs_config(properties)
        credentials = _gcs_credentials
    else:
        container, account = _container_and_account(location, properties)
        make, bucket, config = AzureStore, container, _azure_config(account, location, properties)
        credentials = partial(_azure_credentials, location)
    if not _NAME.fullmatch(bucket):
        raise UnsupportedError(f"{bucket!r} cannot be the name of a bucket or container", bucket=bucket)
    given = credentials(properties)
    if not given:
        # Then they come from the environment, and no catalog can renew them.
        vended = None
    elif vended is not None:
        config = {name: value for name, value in config.items() if name not in ("bearer_token", "sas_key", "token")}
        more["credential_provider"] = partial(_held_now, credentials, vended)
    elif kind == S3:
        more["credential_provider"] = lambda: {**given, "expires_at": None}
    more["client_options"] = _client_options(kind, properties, config)
    raw_page = None
    if kind == S3 and any(roots):
        # It knows no request that names several objects.
        bucket, config = rooted(bucket, roots[0], {**config, **single}, roots[1])
    elif kind == S3 and _lists_in_order(location):
        raw_page = RawLister(bucket, config, more["client_options"], properties, vended).page
    try:
        return Stores(
            patient=make(bucket, config=config, retry_config=_RETRIES, **more),
            once=make(bucket, config={**config, **single}, retry_config={"max_retries": 0}, **more),
            lists_in_order=_lists_in_order(location),
            deletes_many=kind != GCS and not any(roots),
            vended=vended,
            raw_page=raw_page,
        )
    except (BaseError, ValueError) as error:
        # The client's words may hold what it was given, keys among it.
        raise _not_accepted(kind, bucket, config, error) from None


def _not_accepted(kind: str, bucket: str, config: Mapping[str, Any], error: Exception) -> UsageError:
    """The error for properties that the client refuses before any request."""
    if kind == AZURE and "account_name" not in config:
        return ConfigError(
            "adls.account-name",
            "is missing; give it, or name the account in locations: abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
        )
    word = "container" if kind == AZURE else "bucket"
    return UsageError(
        f"cannot reach {word} {bucket!r}: its properties are not accepted ({type(error).__name__}); look at the account, the "
        "keys and the addresses given for it",
        bucket=bucket,
    )


def _lists_in_order(location: Location) -> bool:
    """Whether a store promises it: Amazon S3 for all but its directory buckets, and Google; Azure only for accounts without
    directories of their own, which cannot be seen from here. What speaks the language of S3 is taken at its word.
    """
    kind, bucket = bucket_of(location)
    return kind == GCS or (kind == S3 and not bucket.endswith(_DIRECTORY_BUCKETS))


def _refuse_unsupported(kind: str, properties: Mapping[str, str]) -> None:
    prefixes = {S3: ("s3.", "client."), GCS: ("gcs.",), AZURE: ("adls.",)}[kind]
    for name, value in properties.items():
        if name.startswith(prefixes) and UNSENDABLE.search(value):
            raise ConfigError(name, "has a line break or another control character, which cannot be sent; remove it")
    # A catalog that offers to sign requests may give keys as well.
    allowed = ("s3.signer", "s3.remote-signing-enabled") if properties.get("s3.access-key-id") else ()
    for name, value in properties.items():
        if not name.startswith(prefixes) or name in allowed or value.lower() in ("", "false"):
            continue
        asked = _REFUSED.get(name) or next((a for p, a in _REFUSED_PREFIXES.items() if name.startswith(p)), None)
        if asked is not None:
            raise UnsupportedError(
                f"storage property {name} is not supported: icekeep cannot do {asked}", property=name
            )
    if kind == S3 and _flag(properties, "s3.delete-enabled") is False:
        raise UnsupportedError(
            "storage property s3.delete-enabled is 'false' is not supported: icekeep deletes files, or says why it does not",
            property="s3.delete-enabled",
        )


def _s3_config(bucket: str, properties: Mapping[str, str]) -> dict[str, Any]:
    endpoint = _address(properties, "s3.endpoint")
    asked = {"s3.force-virtual-addressing": True, "s3.path-style-access": False}
    asks = next((name for name, value in asked.items() if _flag(properties, name) is value), None)
    is_virtual = "." not in bucket and asks is not None
    if endpoint and is_virtual:
        if _may_be_ip(urlsplit(endpoint).hostname or ""):
            raise ConfigError(
                asks or "",
                f"puts a bucket's name before the host of s3.endpoint, and an IP address has none; leave out {asks}",
            )
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    return _given(
        region=_first(properties, "s3.region", "client.region"),
        endpoint=endpoint,
        virtual_hosted_style_request=is_virtual or None,
        skip_signature=_flag(properties, "s3.anonymous"),
        copy_if_not_exists="multipart",
        **_s3_encryption(properties),
    )


def _s3_credentials(properties: Mapping[str, str]) -> dict[str, Any]:
    """The client's keys; nothing if the properties name none.

    The client would put a token that it finds in the environment beside keys that are not the environment's.
    """
    key, secret, token = (
        _first(properties, f"s3.{name}", f"client.{name}")
        for name in ("access-key-id", "secret-access-key", "session-token")
    )
    if bool(key) != bool(secret):
        raise ConfigError("s3.access-key-id", "needs s3.secret-access-key beside it, and the other way round")
    return {"access_key_id": key, "secret_access_key": secret, "token": token} if key else {}


def _s3_encryption(properties: Mapping[str, str]) -> dict[str, Any]:
    """Encryption by the store, as Iceberg Java (`s3.sse.type`) or PyIceberg (`s3.server-side-encryption`) name it."""
    kind, key = properties.get("s3.sse.type", "none"), properties.get("s3.sse.key")
    algorithm = properties.get("s3.server-side-encryption")
    if kind == "none" or not kind:
        kms_key = properties.get("s3.sse-kms-key-id")
        if kms_key and not algorithm:
            raise ConfigError("s3.sse-kms-key-id", "needs s3.server-side-encryption, 'aws:kms', beside it")
        return {"server_side_encryption": algorithm, "sse_kms_key_id": kms_key}
    if kind not in _SSE_TYPES:
        raise UnsupportedError(
            f"storage property s3.sse.type is {kind!r}, which is not supported; give one of none, {', '.join(_SSE_TYPES)}",
            property="s3.sse.type",
        )
    if algorithm:
        raise ConfigError("s3.sse.type", "is given beside s3.server-side-encryption; give one of them")
    key_name = "sse_customer_key_base64" if kind == "custom" else "sse_kms_key_id"
    return {"server_side_encryption": _SSE_TYPES[kind], key_name: key if kind != "s3" else None}


def _gcs_config(properties: Mapping[str, str]) -> dict[str, Any]:
    return _given(
        bearer_token=properties.get("gcs.oauth2.token"),
        base_url=_address(properties, "gcs.service.host"),
        skip_signature=_flag(properties, "gcs.no-auth"),
    )


def _gcs_credentials(properties: Mapping[str, str]) -> dict[str, Any]:
    return _given(token=properties.get("gcs.oauth2.token"))


def _container_and_account(location: Location, properties: Mapping[str, str]) -> tuple[str, str]:
    """`CONTAINER@ACCOUNT.dfs.core.windows.net`, or the container alone and the account in a property."""
    container, _, host = location.authority.rpartition("@")
    if container:
        return container, host.split(".", 1)[0].lower()
    return host, _first(properties, "adls.account-name", "adls.auth.shared-key.account.name") or ""


def _azure_config(account: str, location: Location, properties: Mapping[str, str]) -> dict[str, Any]:
    hosts, sas = _azure_hosts(location), _azure_credentials(location, properties).get("sas_token")
    authority = properties.get("adls.blob-storage-authority", "")
    endpoint = None
    if authority:
        # Azure itself has the account in the host's name, what stands in for it has it in the path.
        address = f"{account}{authority}" if authority.startswith(".") else f"{authority}/{account}"
        endpoint = f"{properties.get('adls.blob-storage-scheme', 'https')}://{address}"
        name, advice = "adls.blob-storage-authority", "give HOST:PORT, and http or https as adls.blob-storage-scheme"
        if "/" in authority:
            raise ConfigError(name, f"is no address; {advice}")
        _checked_address(name, endpoint, advice)
    elif hosts:
        endpoint = f"https://{hosts[1].replace('.dfs.', '.blob.', 1)}"
    return _given(
        account_name=account or None,
        account_key=_first(properties, "adls.account-key", "adls.auth.shared-key.account.key"),
        sas_key=sas,
        token=properties.get("adls.token"),
        tenant_id=properties.get("adls.tenant-id"),
        client_id=properties.get("adls.client-id"),
        client_secret=properties.get("adls.client-secret"),
        skip_signature=_flag(properties, "adls.anon"),
        endpoint=endpoint,
    )


def _azure_credentials(location: Location, properties: Mapping[str, str]) -> dict[str, Any]:
    """What can be renewed; a key of the account cannot."""
    names = (*(f"adls.sas-token.{host}" for host in _azure_hosts(location)), "adls.sas-token")
    sas = _first(properties, *names)
    return {"sas_token": sas.removeprefix("?")} if sas else _given(token=properties.get("adls.token"))


def _azure_hosts(location: Location) -> list[str]:
    """The location's own host and its spellings, of which a token may be told for another; none for a container alone."""
    spellings = [location.authority, *store_authorities(*bucket_of(location))]
    return [spelling.rpartition("@")[2] for spelling in spellings if "@" in spelling]


def _held_now(credentials: _Credentials, vended: VendedProperties) -> dict[str, Any]:
    """What a client asks for before a request."""
    return {**credentials(vended.current()), "expires_at": _ALWAYS_ASK_AGAIN}


def _client_options(kind: str, properties: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    address = str(config.get("endpoint") or config.get("base_url") or "")
    options: dict[str, Any] = {"timeout": timedelta(seconds=_REQUEST_TIMEOUT_S)}
    if address.startswith("http://"):
        options["allow_http"] = True
    if kind == S3:
        options |= _given(
            timeout=_seconds(properties, "s3.request-timeout"),
            connect_timeout=_seconds(properties, "s3.connect-timeout"),
            proxy_url=_address(properties, "s3.proxy-uri"),
        )
    return options


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _address(properties: Mapping[str, str], name: str) -> str | None:
    value = properties.get(name)
    return _checked_address(name, value) if value else None


def _checked_address(name: str, value: str, advice: str = "give it as http://HOST:PORT or https://HOST") -> str:
    """An address without slashes at its end; the client would not refuse one that is none, but panic at the first request."""
    try:
        parts = urlsplit(value)
        is_one = (
            _ADDRESS.fullmatch(value) is not None
            and parts.port != 0
            and _HOST.fullmatch(parts.hostname or "") is not None
        )
        if is_one and _may_be_ip(parts.hostname or ""):
            ip_address(parts.hostname or "")
    except ValueError:
        is_one = False
    if not is_one:
        raise ConfigError(name, f"is no address; {advice}")
    return value.rstrip("/")


def _may_be_ip(host: str) -> bool:
    """Whether a host that is no IP address cannot be called so: its last part is a number, or it has a colon."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def _flag(properties: Mapping[str, str], name: str) -> bool | None:
    value = properties.get(name, "").lower()
    if value not in ("", "true", "false"):
        raise ConfigError(name, f"is {value!r}; give true or false")
    return {"": None, "true": True, "false": False}[value]


def _seconds(properties: Mapping[str, str], name: str) -> timedelta | None:
    value = properties.get(name)
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < DAY_SECONDS:
        raise ConfigError(name, f"is {value!r}; give seconds, more than 0")
    return timedelta(seconds=seconds)
