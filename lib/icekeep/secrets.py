"""What is secret, by the names of properties, and how it is kept out of all that is shown, written down or sent on.

Two rules. A property is shown by `masked` only. What other software says (a client's error, a library's log line, a traceback)
goes through `without_secrets`, which cuts out every secret that this process was given (`remember`), however that software
spells it, and what looks like one in an address or a header.
"""

import json
import os
import re
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import SplitResult, quote, quote_plus, unquote, urlsplit

MASK = "******"

_WORDS = re.compile(
    r"(?:^|-)(?:secrets?|pass|password|passwd|passphrase|tokens?|credentials?|authorization|cookies?|apikey|sas|sig|signature"
    r"|headers?|connection-string|keys?(?!-id(?:-|$)))(?:-|$)"
)
"""The words of a name, parted by dashes, dots and underscores, by which a property is secret."""

_PLAIN_ENDS = re.compile(
    r"(?:^|-)(?:tokens?-expires-at(?:-ms)?|token-(?:refresh|exchange)-enabled|shared-key-account-name|credentials-provider"
    r"|application-credentials|ssl-client-key|(?:token|credentials?|key|password|secret)-(?:file|path)|token-ur[il])$"
)
"""How names end of what is no secret for all its words: times, switches, and where something is."""

_FOREIGN = "auth-custom-"
"""How names begin of what a login of somebody else's takes, of which anything may be secret."""

_MESSAGES = re.compile(r"notifications\[\d*\]\.url")
"""Of the address of a service for messages, which is secret as a whole but for the service: most have their tokens in it."""

_SERVICE = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://\S+")
_PARTS = re.compile(r"[/@?&=:#]+")
_TOKEN = re.compile(r"(?=.*[0-9A-Z]).{8,}|.{20,}")
"""What looks like a token, as an ordinary word of an address, such as `services` in a path, does not."""

_TRIVIAL = re.compile(r"true|false|[0-9]{1,5}", re.IGNORECASE)
"""Values that many texts hold, too."""

_LENGTH_MIN, _PART_LENGTH_MIN = 4, 8
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_ENCLOSED = "-----BEGIN "
"""How keys begin that are given as text in place of a file."""

_USER_INFO = re.compile(r"(https?)?(://)([^/?#:@\s]*)(:[^/?#\s'\"]*)?@")
_USER_INFO_ALONE = re.compile(r"(https?)?(://)([^/?#:@]*)(:.*)?@", re.DOTALL)
"""Of an address that stands alone: its password may hold what parts addresses (SQLAlchemy takes it so), up to the last `@`."""

_NEXT_ADDRESS = re.compile(r",(?=\s*[a-z][a-z0-9+.-]*://)", re.IGNORECASE)

_PARAMETER = re.compile(r"([?&;]([\w.%-]+)=)([^&\s'\")]*)")
_PARAMETER_ALONE = re.compile(r"([?&;]([\w.%-]+)=)([^&]*)")
_LOGIN = re.compile(r"\b((?:Bearer|Basic) )[\w.~+/=-]{8,}")


def is_secret(key: str) -> bool:
    """Whether a property, a header (`header.NAME`), a parameter or an environment variable of that name holds a secret.

    >>> is_secret("s3.secret-access-key"), is_secret("s3.access-key-id"), is_secret("gcs.oauth2.token-expires-at")
    (True, False, False)
    """
    words = re.sub(r"[^a-z0-9]+", "-", key.lower())
    return words.startswith(_FOREIGN) or _WORDS.search(_PLAIN_ENDS.sub("", words)) is not None


def masked(key: str, value: str) -> str:
    """A property's value without what nobody should read over a shoulder; references to variables are no secrets.

    >>> masked("token", "abc"), masked("token", "${TOKEN}"), masked("uri", "postgresql://me:pw@db/x")
    ('******', '${TOKEN}', 'postgresql://me:******@db/x')
    >>> masked("notifications[0].url", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ")
    'slack://******'
    """
    if _REFERENCE.fullmatch(value):
        return value
    if _MESSAGES.fullmatch(key):
        return _SERVICE.sub(rf"\1://{MASK}", value) if _SERVICE.fullmatch(value) else MASK
    if is_secret(key) or _ENCLOSED in value:
        return MASK
    user_info = _USER_INFO if _has_no_login(value) else _USER_INFO_ALONE
    return _without_logins(value, user_info, _PARAMETER_ALONE)


def is_own_file(path: str | Path) -> bool:
    """Whether a file belongs to the user of this process, or to root.

    A file that was found in the current directory, and that nobody named, says where secrets of the environment go: whoever made
    that directory must not be able to say so.
    """
    return os.stat(path).st_uid in (0, os.geteuid())


def server_address(text: str, schemes: Collection[str]) -> SplitResult | None:
    """The parts of a server's address; `None` where a text is none.

    Nor is one whose password holds what parts addresses, which must be percent-encoded: the rest of it would be looked up, and
    shown, as a host.

    >>> server_address("https://me:pw@host:8181/api", {"https"}).hostname
    'host'
    >>> server_address("https://me:p/w@host", {"https"}), server_address("host:8181", {"https"})
    (None, None)
    """
    parts = urlsplit(text)
    try:
        is_whole = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_whole and parts.netloc.count("@") <= 1 else None


def without_login(address: str) -> str:
    """An address, or several with commas between, without users and passwords.

    >>> without_login("thrift://h1:9083,thrift://me:pw@h2:9083")
    'thrift://h1:9083,thrift://h2:9083'
    """
    # A password may hold a comma, too.
    addresses = _NEXT_ADDRESS.split(address)
    return ",".join(one if _has_no_login(one) else _USER_INFO_ALONE.sub(r"\1\2", one, count=1) for one in addresses)


def _has_no_login(address: str) -> bool:
    """Whether the first part of an address is a host for sure: an `@` may stand in its path, as in Nessie's."""
    parts = server_address(address, ("http", "https", "thrift"))
    return parts is not None and "@" not in parts.netloc


_lock = threading.RLock()
"""Taken again by one thread: what is collected as garbage meanwhile may write a line of a log."""

_held: "weakref.WeakKeyDictionary[object, frozenset[str]]" = weakref.WeakKeyDictionary()
_known: frozenset[str] = frozenset()
_known_pattern: re.Pattern[str] | None = None


def remember(properties: Mapping[str, str]) -> None:
    """Take note of the secrets among some properties, or environment variables: `without_secrets` cuts them out from now on."""
    global _known, _known_pattern
    found = frozenset(form for key, value in properties.items() for one in _secrets(key, value) for form in _forms(one))
    if found <= _known:
        return
    with _lock:
        _known |= found
        # The longest first: a part of a secret may be another one.
        _known_pattern = re.compile("|".join(map(re.escape, sorted(_known, key=len, reverse=True))))


def remember_while(owner: object, properties: Mapping[str, str]) -> None:
    """As `remember`, until the object is gone that holds the properties: such as credentials that are renewed every hour."""
    forms = {form for key, value in properties.items() for one in _secrets(key, value) for form in _forms(one)} - _known
    if forms:
        with _lock:
            _held[owner] = frozenset(forms)


def without_secrets(text: str) -> str:
    """What other software says, without the secrets of this process, and without logins in addresses and headers.

    >>> remember({"token": "s3cr3t-t0ken"})
    >>> without_secrets("Invalid header value b'Bearer s3cr3t-t0ken' for https://me:pw@host/x?sig=abc")
    "Invalid header value b'Bearer ******' for https://me:******@host/x?sig=******"
    """
    if _held:
        with _lock:
            held = frozenset().union(*_held.values())
        for form in sorted(filter(text.__contains__, held), key=len, reverse=True):
            text = text.replace(form, MASK)
    if _known_pattern is not None:
        text = _known_pattern.sub(MASK, text)
    return _LOGIN.sub(rf"\1{MASK}", _without_logins(text, _USER_INFO, _PARAMETER))


def _without_logins(text: str, user_info: re.Pattern[str], parameter: re.Pattern[str]) -> str:
    return parameter.sub(_masked_parameter, user_info.sub(_masked_user_info, text))


def _masked_user_info(match: re.Match[str]) -> str:
    scheme, slashes, user, password = match.groups(default="")
    if password:
        return f"{scheme}{slashes}{user}:{MASK}@"
    # Who gives a server a user alone gives it a token; elsewhere it is a user, or the container in a location of Azure's.
    return f"{scheme}{slashes}{MASK if scheme and user else user}@"


def _masked_parameter(match: re.Match[str]) -> str:
    return match[1] + MASK if is_secret(unquote(match[2])) else match[0]


def _secrets(key: str, value: str) -> Iterator[str]:
    """The secrets in a property: all of it and its parts, or what an address holds of them."""
    if is_secret(key) or _ENCLOSED in value:
        yield value
        # A client's credential for OAuth2 is its name and its secret; headers and connection strings have parts, too.
        yield value.partition(":")[2]
        yield from (part for part in re.split(r"[\s;,=:]+", value) if len(part) >= _PART_LENGTH_MIN)
        return
    if _MESSAGES.fullmatch(key):
        try:
            host = urlsplit(value).hostname or ""
        except ValueError:
            host = ""
        names = {host} if "." in host else set()
        yield from (one for one in _PARTS.split(value) if _TOKEN.fullmatch(one) and one.lower() not in names)
    for scheme, _, user, password in () if _has_no_login(value) else _USER_INFO_ALONE.findall(value):
        yield password[1:] if password or not scheme else user
    yield from (match[3] for match in _PARAMETER_ALONE.finditer(value) if is_secret(unquote(match[2])))


def _forms(secret: str) -> Iterator[str]:
    """How software spells a secret: as it is, cut, quoted, escaped, or percent-encoded."""
    for plain in {secret, secret.strip(), unquote(secret)}:
        if len(plain.strip()) < _LENGTH_MIN or _TRIVIAL.fullmatch(plain.strip()) or _REFERENCE.fullmatch(plain):
            continue
        yield plain
        yield from (repr(plain)[1:-1], ascii(plain)[1:-1], repr(plain.encode())[2:-1], json.dumps(plain)[1:-1])
        yield from (quote(plain), quote(plain, safe=""), quote_plus(plain))
