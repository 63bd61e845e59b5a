"""What the errors of object stores mean, and which of them prove that a request changed nothing.

The client tells most of its failures apart only in the text of one class. That text is read where it is fixed, and
nothing of it but a status and a code of the store goes into our messages. A key that the client cannot address as it is
spelled is refused here, too.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.storage.locations import AZURE, S3, Location, parse_location, store_kind

T = TypeVar("T")


class ClientPanicError(BaseError):
    """The client has met what its authors did not think of, most often a setting that cannot be sent."""


STORE_ERRORS = (BaseError, OSError)
"""What the client raises for a request; `OSError` because a missing object is a `FileNotFoundError`."""

_FAILED = re.compile(
    r"Generic \S+ error: (?:Error performing "
    r"(?P<purpose>list|bulk delete|DeleteObjects|complete multipart|token|CreateSession) request: )?"
    r"Error performing [A-Z]+ (?P<address>\S+) in [^\s,]+"
    r"(?:, after \d+ retries, max_retries: \d+, retry_timeout: \S+ )? - "
)
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_NO_CONNECTION = re.compile(r"HttpError \{\s*kind: Connect,")
_TIMED_OUT = re.compile(r"HttpError \{\s*kind: Timeout,")
_UNTRUSTED = "InvalidCertificate("
_REDIRECTED = "Received redirect without LOCATION"
_IDENTITY_SERVICE = re.compile(
    r"https?://[^/]+/(?:latest/api/token|latest/meta-data|computeMetadata|metadata/identity)(?:/|$)"
)
_OF_THIS_MACHINE = re.compile(r"http://169\.254\.\d+\.\d+[:/]")
"""Where machines in a cloud ask who they are; no store has such an address."""

_NO_BUCKET = ("NoSuchBucket", "The specified bucket does not exist", "ContainerNotFound", "ResourceNotFound")
"""Azure has its own word for an account, and for a container that it shows only to who has credentials."""

_REFUSALS = frozenset({400, 401, 403, 404, 405, 411, 413, 429, 501})
"""Answers of a store, or of what stands before it, to a request that it did not carry out."""

IDENTITY_CODES = frozenset(
    {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "AuthenticationFailed"}
)
DENIAL_CODES = frozenset({"AccessDenied", "AllAccessDisabled", "SignatureDoesNotMatch"})
_REGION_CODES = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})


def without_panics(request: Callable[[], T]) -> T:
    """Call the client; a panic, which is no `Exception` and would end a process as an interrupt does, becomes an error of its."""
    try:
        return request()
    except Exception:
        raise
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        # What it says may hold what was sent.
        raise ClientPanicError("the client has panicked") from None


def is_refused(error: Exception) -> bool:
    """Whether a failed request certainly changed nothing: it was answered so, or was never sent.

    It is not sent without a connection, nor when the request for credentials that goes before it has failed.

    All else is unknown: an answer of 5xx may come from a proxy that had passed the request on, and a connection that
    breaks may have carried it.
    """
    if isinstance(
        error, FileNotFoundError | PermissionDeniedError | UnauthenticatedError | InvalidPathError | NotSupportedError
    ):
        return True
    text = str(error)
    failed = _FAILED.match(text) if isinstance(error, GenericError) else None
    if failed is None:
        return False
    cause = text[failed.end() :]
    return (
        failed["purpose"] in ("token", "CreateSession")
        or _OF_THIS_MACHINE.match(failed["address"]) is not None
        or _status(error) in _REFUSALS
        or cause.startswith(_REDIRECTED)
        or _NO_CONNECTION.search(cause) is not None
    )


def may_be_expired(error: BaseException) -> bool:
    """Whether a request was refused as it is with credentials that have ended; an answer to a look at an object has no code."""
    if isinstance(error, UnauthenticatedError):
        return True
    if not isinstance(error, GenericError | PermissionDeniedError):
        return False
    code = _code(error)
    refused = isinstance(error, PermissionDeniedError) or _status(error) in (400, 401, 403)
    return refused and (not code or code in IDENTITY_CODES)


def is_out_of_reach(error: Exception) -> bool:
    """Whether a store gave no answer to a request, or one that says no more than that it cannot serve for now."""
    if not isinstance(error, GenericError) or not _FAILED.match(str(error)):
        return False
    status = _status(error)
    return status is None or status in (408, 429) or (status >= 500 and status != 501)


def is_collision(error: Exception, key: str) -> bool:
    """Whether a store refused a create since another write of the name was under way (409), and not for its end (412)."""
    if not isinstance(error, AlreadyExistsError):
        return False
    told = f"Object at location {key} already exists: Error performing "
    text = str(error)
    status = _STATUS.search(text, len(told))
    return text.startswith(told) and status is not None and status[1] == "409"


def is_unimplemented(error: Exception) -> bool:
    """Whether a store says that it does not know what was asked of it."""
    refused = _status(error) == 400 and _code(error) in ("NotImplemented", "InvalidArgument", "InvalidRequest")
    return isinstance(error, NotSupportedError) or _status(error) in (405, 501) or refused


def translate_store_error(error: Exception, action: str, location: str) -> IcekeepError:
    """The error of ours that says what to do about a client's error; `action` is a verb ("read")."""
    message = f"cannot {action} {location!r}"
    if any(sign in str(error) for sign in _NO_BUCKET):
        return no_bucket(message, location)
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"{message}: there is no such file", location=location)
    advice = _advice(error)
    if advice:
        return UsageError(f"{message}: {advice}", location=location)
    if _code(error) == "KeyTooLongError":
        return InvalidTableError(f"{message}: the name is too long for the store", location=location)
    if isinstance(error, InvalidPathError):
        return UnsupportedError(
            f"{message}: the name of an object there has an empty part, '.', '..' or a control character, which cannot be "
            "addressed; rename or remove that object",
            location=location,
        )
    if isinstance(error, NotSupportedError):
        return UnsupportedError(f"{message}: the store cannot do it", location=location)
    return UnavailableError(f"{message}: {reason(error)}", location=location)


def _advice(error: Exception) -> str:
    """What is wrong with the settings that a request was sent with, and what to do; empty where nothing says so."""
    text, code = str(error), _code(error)
    failed = _FAILED.match(text)
    if isinstance(error, ClientPanicError):
        return (
            "the client of the store has panicked; look for a property or a variable of the environment with what cannot be "
            "part of an address or a header"
        )
    if failed and _IDENTITY_SERVICE.match(failed["address"]):
        return "no credentials are given, and this machine has none; set them in the catalog's properties or in the environment"
    # A listing, and a request that deletes many objects, tell it by a status alone.
    if (
        isinstance(error, PermissionDeniedError | UnauthenticatedError)
        or _status(error) in (401, 403)
        or code in IDENTITY_CODES | DENIAL_CODES
    ):
        return f"the store denies access ({code or 'it says no more'}); check the credentials and what they may do"
    if _UNTRUSTED in text:
        return "the store's certificate is not trusted here; check the endpoint, or install its certificate authority"
    if code in _REGION_CODES or _REDIRECTED in text:
        return "the bucket is in another region; set s3.region"
    return ""


def no_bucket(message: str, location: str) -> UsageError:
    """What is raised where a bucket is not there; Azure calls it a container."""
    word = "container" if store_kind(parse_location(location).scheme) == AZURE else "bucket"
    return UsageError(f"{message}: there is no such {word}; make it, or name another location", location=location)


def name_is_taken(location: str) -> FileExistsError:
    """What a call raises that may not replace the object that has its name."""
    return FileExistsError(errno.EEXIST, "there is such an object already", location)


@contextmanager
def translated(action: str, location: str) -> Iterator[None]:
    """Raise what a store refuses as errors of ours; `FileExistsError` stays, since callers act on it."""
    try:
        yield
    except FileExistsError:
        raise
    except STORE_ERRORS as error:
        raise translate_store_error(error, action, location) from error


def reason(error: Exception) -> str:
    """What went wrong, as a part of a line of ours."""
    text, status, code = str(error), _status(error), _code(error)
    if status is not None:
        return f"the store answers {status}" + (f" ({code})" if code else "")
    if _NO_CONNECTION.search(text):
        return "no connection to the store can be made"
    if _TIMED_OUT.search(text):
        return "the store did not answer in time"
    return "the request to the store failed"


def _status(error: Exception) -> int | None:
    text = str(error)
    failed = _FAILED.match(text)
    status = _STATUS.match(text, failed.end()) if failed else None
    return int(status[1]) if status else None


def _code(error: Exception) -> str:
    match = _CODE.search(str(error))
    return match[1] if match else ""


UNSENDABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def has_roots(location: Location) -> bool:
    """Whether names with empty parts can be addressed there."""
    return store_kind(location.scheme) == S3


def without_empty_parts(key: str) -> str:
    """A key with each run of slashes as one."""
    return "/".join(filter(None, key.split("/"))) + ("/" if key.endswith("/") else "")


def check_key(key: str, location: str) -> None:
    """Raise `UnsupportedError` for a key that the client would change or cannot send."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or UNSENDABLE.search(key):
        raise UnsupportedError(
            f"location {location!r} cannot be used in an object store: the client would change its name; it may have no "
            "empty part (but in S3), no '.' or '..', no slash at an end and no control character",
            location=location,
        )
