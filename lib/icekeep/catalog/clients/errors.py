"""What a client's error proves about a request: a closed whitelist, and the default is nothing.

A request is proved to have changed nothing where it never left this machine, where the server says so in the error body
of the REST protocol, or where Glue refused it by a code of its own. A proxy on the way may answer 4xx for a request
that the server carried out (it timed out, or sent it twice), so without that body only 401 and 403 count, which are
decided before anything is done. 408 and all of 5xx but a described 501 prove nothing whatever they say.

Clients raise the errors of this module where an answer names the obstacle, each from the library's own error, and read
a catalog's properties through `Settings`.
"""

import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import msgspec

from icekeep.catalog.base import Identifier, format_identifier
from icekeep.decoding import from_json
from icekeep.errors import (
    ConfigError,
    IcekeepBug,
    IcekeepError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    reason_of,
)
from icekeep.secrets import masked, remember, server_address, without_login, without_secrets

_BY_STATUS: dict[int, type[IcekeepError]] = {
    400: UsageError,
    404: NotFoundError,
    406: UnsupportedError,
    422: UsageError,
    429: UnavailableError,
    501: UnsupportedError,
}
"""Answers that prove that nothing was done, if the body is the REST protocol's."""

_NEWER_TABLE = "UnsupportedTableFormatVersionException"
"""What a server says, with 400 or 422, of a table whose format version the protocol's first version cannot show."""

_BY_GLUE_CODE: dict[str, type[IcekeepError]] = {
    "AccessDeniedException": UsageError,
    "EntityNotFoundException": NotFoundError,
    "ExpiredTokenException": UsageError,
    "GlueEncryptionException": UsageError,
    "IncompleteSignature": UsageError,
    "InvalidClientTokenId": UsageError,
    "InvalidInputException": UsageError,
    "InvalidSignatureException": UsageError,
    "MissingAuthenticationToken": UsageError,
    "ResourceNumberLimitExceededException": UsageError,
    "ThrottlingException": UnavailableError,
    "UnrecognizedClientException": UsageError,
    "ValidationException": UsageError,
}


_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RecursionError, TypeError)
"""What no server and no network makes a client raise; to try again is no use."""

_UNKNOWN_METHOD = 1
_UNSENT = frozenset({"InvalidURL", "InvalidSchema", "MissingSchema", "InvalidHeader", "InvalidProxyURL"})
_WITHOUT_KEYS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ProfileNotFound", "InvalidRegionError"}
)


def proved_rejection(error: BaseException, catalog_name: str) -> IcekeepError | None:
    """The error to raise for one of a client that proves that its request changed nothing; `None` where it proves nothing."""
    kind = _rejection_kind(error)
    if kind is None:
        return None
    if _never_connected(error):
        text = f"catalog {catalog_name!r} is out of reach{_place_of(error)}: {reason_of(error)}"
        return kind(text, catalog=catalog_name)
    if _is_wrongly_set_up(error):
        advice, cause = f"{described(error)}; check its properties", _tls_error(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = (
                f"its certificate is not trusted here ({cause.verify_message}); check the address, or set ssl.cabundle"
            )
        text = f"catalog {catalog_name!r} cannot be asked{_place_of(error)}: {advice}"
        return kind(text, catalog=catalog_name)
    verdict = "is not available" if kind is UnavailableError else "refused"
    return kind(f"catalog {catalog_name!r} {verdict}: {described(error)}", catalog=catalog_name)


def read_failure(error: BaseException, catalog_name: str) -> IcekeepError:
    """The error to raise for a request that only reads, or that failed before it changed anything."""
    if isinstance(error, IcekeepError):
        return error
    if isinstance(error, msgspec.ValidationError):
        return UnsupportedError(
            f"catalog {catalog_name!r} answered what the protocol does not say: {described(error)}",
            catalog=catalog_name,
        )
    response = _response(error)
    if response is not None and response.is_redirect:
        return UsageError(
            f"catalog {catalog_name!r} redirects requests ({described(error)}), and icekeep follows no redirects; if that is the "
            "right server, set uri to it",
            catalog=catalog_name,
        )
    if isinstance(error, _MISTAKES):
        return IcekeepBug(
            f"catalog {catalog_name!r}: {described(error)} ({type(error).__name__}); please report it, --verbose shows more",
            catalog=catalog_name,
        )
    # This may also come once a request was sent, and so proves nothing of a change.
    if getattr(_tls_error(error), "reason", None) == "WRONG_VERSION_NUMBER":
        return UsageError(
            f"catalog {catalog_name!r} cannot be asked{_place_of(error)}: it speaks no TLS; give an address with http://",
            catalog=catalog_name,
        )
    is_lost = response is not None and int(response.status_code) == 404
    advice = "; check uri, which goes without /v1, and prefix" if is_lost else ""
    return proved_rejection(error, catalog_name) or UnavailableError(
        f"catalog {catalog_name!r} cannot be asked: {described(error)}{advice}", catalog=catalog_name
    )


def was_sent_before(error: BaseException) -> bool:
    """Whether Amazon's client had sent the request before the one that was answered so: that one may land still."""
    answers = (getattr(link, "response", None) for link in _chain(error))
    return any(isinstance(a, dict) and a.get("ResponseMetadata", {}).get("RetryAttempts", 0) for a in answers)


def is_answered(error: BaseException) -> bool:
    """Whether a REST server answered a request, so that it was sent."""
    return _response(error) is not None


def is_bad_request(error: BaseException) -> bool:
    """Whether a REST server answered that a request makes no sense to it (400)."""
    response = _response(error)
    return response is not None and int(response.status_code) == 400


class _Error(msgspec.Struct):
    message: Any
    type: Any
    code: Any


class _ErrorBody(msgspec.Struct):
    error: _Error


def protocol_error(text: str) -> str | None:
    """What the REST protocol's error body says, in `text`; `None` where it is something else."""
    try:
        error = from_json(text, _ErrorBody).error
    except msgspec.DecodeError:
        return None
    return f"{error.type}: {error.message}"


def described(error: BaseException) -> str:
    """What an error says, in one line and without secrets."""
    if isinstance(error, IcekeepError):
        return error.message
    # Cut before lines are parted, since a secret may hold a line break.
    lines = without_secrets(str(error)).splitlines()
    return next(filter(str.strip, lines), type(error).__name__)


def _rejection_kind(error: BaseException) -> type[IcekeepError] | None:
    response = _response(error)
    if response is not None:
        status = int(response.status_code)
        if status in (401, 403):
            return UsageError
        said = protocol_error(response.text)
        if said is None:
            return None
        is_newer = status in (400, 422) and said.startswith(f"{_NEWER_TABLE}:")
        return UnsupportedError if is_newer else _BY_STATUS.get(status)
    if _never_connected(error):
        return UnavailableError
    # A Thrift server answers so what it does not know, as another version of Hive may.
    if type(error).__name__ == "TApplicationException" and getattr(error, "type", None) == _UNKNOWN_METHOD:
        return UnsupportedError
    if _is_wrongly_set_up(error):
        return UsageError
    answers = (getattr(link, "response", None) for link in _chain(error))
    code = next((one["Error"].get("Code", "") for one in answers if isinstance(one, dict) and "Error" in one), "")
    # An attempt before this one may have landed and only its answer have been lost.
    return None if was_sent_before(error) else _BY_GLUE_CODE.get(code)


def _never_connected(error: BaseException) -> bool:
    """Whether no connection was made, by the types of urllib3 that requests wraps; then nothing can have been sent."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    names = {cls.__name__ for cls in type(reason).__mro__}
    return type(error).__module__.startswith("requests.") and bool(
        names & {"NewConnectionError", "ConnectTimeoutError", "NameResolutionError"}
    )


def _is_wrongly_set_up(error: BaseException) -> bool:
    """Whether a client could not even begin by what it was given: an address, a header, a certificate, keys of AWS."""
    module = type(error).__module__
    if module.startswith("requests."):
        return type(error).__name__ in _UNSENT or isinstance(_tls_error(error), ssl.SSLCertVerificationError)
    return module == "botocore.exceptions" and type(error).__name__ in _WITHOUT_KEYS


def _tls_error(error: BaseException) -> object:
    """The error of TLS that one of requests was raised for; `None` if it was for something else."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    cause = next(iter(getattr(reason, "args", ())), None)
    return cause if isinstance(cause, ssl.SSLError) else None


def _place_of(error: BaseException) -> str:
    """Where a request was to go, without what is secret in an address."""
    parts = urlsplit(str(getattr(getattr(error, "request", None), "url", None) or ""))
    return f" at {without_login(f'{parts.scheme}://{parts.netloc}')}" if parts.netloc else ""


def _response(error: BaseException) -> Any:
    """The answer of a REST server, which is at the error or at the one that it was raised from."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        if hasattr(response, "status_code"):
            return response
    return None


def _chain(error: BaseException) -> Iterator[Any]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


class Refusal(Exception):
    """A request was answered by a no that has a meaning."""

    says: ClassVar[str] = "refused:"

    @classmethod
    def of(cls, name: Identifier) -> Self:
        """The refusal of a request about a table or namespace, where the answer has no words of its own."""
        return cls(f"{cls.says} {format_identifier(name)!r}")


class NoSuchTable(Refusal):
    says = "there is no table"


class NoIcebergTable(Refusal):
    says = "this is no Iceberg table:"


class TableExists(Refusal):
    says = "there is already a table"


class NoSuchNamespace(Refusal):
    says = "there is no namespace"


class NamespaceExists(Refusal):
    says = "there is already a namespace"


class NamespaceNotEmpty(Refusal):
    says = "there is something in namespace"


class CommitRefused(Refusal):
    """The table is not what the commit was made for, or somebody else is at it."""

    says = "another writer has changed table"


SIGV4 = "rest.sigv4-enabled"
AUTH = "auth."
"""How PyIceberg's properties of a login begin that have a type."""

AUTH_TYPE = "auth.type"
KERBEROS = "hive.kerberos-authentication"
_SWITCHES = dict.fromkeys(("true", "yes", "on", "t", "y", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "f", "n", "0"), False
)


class Settings:
    """The properties of the catalog `name`; one that makes no sense is a `ConfigError` that says which."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self.properties = properties
        remember(properties)

    def text(self, *keys: str) -> str | None:
        """The first of some properties that is there and not empty."""
        return next((self.properties[key] for key in keys if self.properties.get(key)), None)

    def switch(self, key: str, *, default: bool) -> bool:
        given = self.text(key)
        if given is None:
            return default
        if given.lower() not in _SWITCHES:
            raise self._wrong(key, "true or false")
        return _SWITCHES[given.lower()]

    def count(self, key: str, default: int, least: int = 0) -> int:
        given = self.text(key) or str(default)
        if not given.isdecimal() or int(given) < least:
            raise self._wrong(key, f"a whole number, {least} or more" if least else "a whole number")
        return int(given)

    def seconds_in_ms(self, key: str, default_ms: int) -> int:
        given = self.text(key)
        try:
            return default_ms if given is None else max(0, round(float(given) * 1000))
        except (ValueError, OverflowError):
            raise self._wrong(key, "seconds") from None

    def file(self, key: str) -> str | None:
        given = self.text(key)
        if given is not None and not os.path.exists(given):
            raise self._wrong(key, "the path of a file on this machine; there is none")
        return given

    def address(self, key: str) -> str:
        """The address of a server, or of something on it; empty where it is not given."""
        given = (self.text(key) or "").strip()
        if given and server_address(given, ("http", "https")) is None:
            # The text may hold a password, so it is not repeated.
            raise ConfigError(
                f"catalogs.{self.name}.{key}", "is no address of a server; give http://HOST:PORT or https://HOST"
            )
        return given

    def _wrong(self, key: str, wanted: str) -> ConfigError:
        return ConfigError(f"catalogs.{self.name}.{key}", f"is {masked(key, self.properties[key])!r}; give {wanted}")
