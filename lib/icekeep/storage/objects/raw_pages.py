"""Pages of S3's listings with names as they are, by botocore: the other client cannot tell names with empty parts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from icekeep.errors import IcekeepError, UnavailableError, UnsupportedError, UsageError, brought_by
from icekeep.storage.objects.errors import no_bucket
from icekeep.storage.vended import VendedProperties

_SENDS_MAX = 6
_ENDED = frozenset(
    {
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidAccessKeyId",
        "RequestExpired",
        "400",
        "401",
        "403",
    }
)
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "SignatureDoesNotMatch"})
_UNSENDABLE = re.compile("[\x00-\x1f\x7f]")


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
            answer = ask() if self._vended is None else self._vended.ask(ask, _may_be_expired)
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
        for one in objects:
            _check_name(one["path"], f"s3://{self._bucket}/{one['path']}")
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


def _check_name(key: str, location: str) -> None:
    if _UNSENDABLE.search(key) or any(part in (".", "..") for part in key.split("/")):
        raise UnsupportedError(
            f"cannot list {location!r}: the name of that object has the part '.' or '..' or a control character, which "
            "cannot be addressed; rename or remove it",
            location=location,
        )


def _code(error: BaseException) -> str:
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _status(error: BaseException) -> int | None:
    answer = getattr(error, "response", None)
    return answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None


def _may_be_expired(error: BaseException) -> bool:
    return _code(error) in _ENDED


def _translated(error: Exception, location: str) -> IcekeepError:
    """The error of ours; nothing of botocore's words is told but the store's code."""
    code, message = _code(error), f"cannot list {location!r}"
    if code == "NoSuchBucket":
        return no_bucket(message, location)
    is_without = type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")
    if is_without or _status(error) in (401, 403) or code in _ENDED | _DENIED:
        return UsageError(
            f"{message}: the store denies access ({code or 'no credentials'}); check the credentials and what they may do",
            location=location,
        )
    return UnavailableError(
        f"{message}: the request to the store failed ({code or type(error).__name__})", location=location
    )
