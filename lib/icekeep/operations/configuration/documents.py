"""A YAML file as a tree of entries that know the path of their key, strict where YAML is lax.

Every question to an entry (`text`, `mapping`, `whole_number` ...) either answers or raises a `ConfigError` that names the key
and the line. Scalars keep the text that was written, so that a property `NO` or `010` reaches a catalog as it stands.
What a value is never shows in a message or a `repr`: it may be a secret.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec
import yaml

from icekeep.errors import ConfigError, UsageError
from icekeep.spec.types import parse_bytes
from icekeep.spelling import did_you_mean, near_words

_MAX_DEPTH = 20
_MIN_ENTRIES = 10_000
_TAG_MAP = "tag:yaml.org,2002:map"
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_TRUE_WORDS = frozenset({"true", "yes", "on"})
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")


class Entry(msgspec.Struct, frozen=True):
    """A value of the file; `value` is a mapping, a tuple, or the scalar's text, and `kind` is YAML's name of its type."""

    key_path: str
    place: str
    kind: str
    value: "Mapping[str, Entry] | tuple[Entry, ...] | str"

    def __repr__(self) -> str:
        return f"Entry({self.key_path!r}, {self.kind})"

    def wrong(self, problem: str) -> ConfigError:
        return ConfigError(self.key_path, f"{problem} ({self.place})")

    def mapping(self, known: Collection[str] | None = None) -> Mapping[str, "Entry"]:
        """The entries below, by key; with `known`, any other key is an error."""
        if not isinstance(self.value, Mapping):
            raise self._wrong_type("keys with values")
        for key, entry in self.value.items():
            if known is not None and key not in known:
                raise entry.unknown(key, known, ", ".join(sorted(known)))
        return self.value

    def unknown(self, key: str, known: Collection[str], listed: str) -> ConfigError:
        """The error of this entry, whose key is not known, with the one that may be meant, or all as `listed` has them."""
        near = near_words(key, known)
        return self.wrong(f"there is no such key; {did_you_mean(near) if near else f'there is {listed}'}")

    def required(self, key: str, form: str = "") -> "Entry":
        """The entry of a key that must be there; `form` is what to give, as the error says."""
        below = self.mapping()
        if key not in below:
            problem = f"is missing{form and f'; give {form}'}{instead_of(key, below)}"
            raise ConfigError(f"{self.key_path}.{key}", f"{problem} ({self.place})")
        return below[key]

    def sequence(self) -> tuple["Entry", ...]:
        if not isinstance(self.value, tuple):
            raise self._wrong_type("a list")
        return self.value

    def scalar(self) -> str:
        """The text of any scalar but null, as it is written."""
        if not isinstance(self.value, str) or self.kind == "null":
            raise self._wrong_type("a single value")
        return self.value

    def text(self, wanted: str = "text") -> str:
        """A text; a number or a word that YAML takes for a boolean must be quoted. `wanted` is what an error asks for."""
        if not isinstance(self.value, str) or self.kind != "str":
            raise self._wrong_type(wanted)
        if not self.value.strip():
            raise self.wrong("is empty")
        return self.value

    def whole_number(self, *, minimum: int) -> int:
        """A decimal whole number of at least `minimum`."""
        if not isinstance(self.value, str) or self.kind != "int":
            raise self._wrong_type("a whole number")
        if not _WHOLE_NUMBER.fullmatch(self.value):
            raise self.wrong("should be a whole number in decimal digits alone, with no 0 before them")
        number = int(self.value)
        if number < minimum:
            raise self.wrong(f"is {number}; give a whole number of {minimum} or more")
        return number

    def size(self) -> int:
        size = parse_bytes(self.value) if isinstance(self.value, str) and self.kind == "str" else None
        return self.whole_number(minimum=0) if size is None else size

    def number(self, *, minimum: float) -> float:
        if not isinstance(self.value, str) or self.kind not in ("int", "float") or not _NUMBER.fullmatch(self.value):
            raise self._wrong_type("a number")
        number = float(self.value)
        if number < minimum:
            raise self.wrong(f"is {self.value}; give a number of {minimum:g} or more")
        return number

    def boolean(self) -> bool:
        if not isinstance(self.value, str) or self.kind != "bool":
            raise self._wrong_type("true or false")
        return self.value.lower() in _TRUE_WORDS

    def nulled(self, key_path: str) -> "Entry":
        """The same tree with null as the value of a key; unchanged where there is no such key."""
        if self.key_path == key_path:
            return msgspec.structs.replace(self, kind="null", value="")
        if isinstance(self.value, Mapping):
            below = {key: entry.nulled(key_path) for key, entry in self.value.items()}
            return msgspec.structs.replace(self, value=below)
        if isinstance(self.value, tuple):
            return msgspec.structs.replace(self, value=tuple(entry.nulled(key_path) for entry in self.value))
        return self

    @property
    def is_null(self) -> bool:
        return self.kind == "null"

    def _wrong_type(self, wanted: str) -> ConfigError:
        found = {
            "null": "no value",
            "str": "text",
            "int": "a number",
            "float": "a number",
            "bool": "true or false",
            "timestamp": "a date",
            "mapping": "keys with values",
            "sequence": "a list",
        }.get(self.kind, self.kind)
        return self.wrong(f"should be {wanted}, but is {found}")


def instead_of(missing: str, given: Iterable[str]) -> str:
    """What follows the error of a missing key: the key that was given, and may be meant for it.

    >>> instead_of("uri", ["url", "warehouse"]), instead_of("uri", ["type", "oauth2-server-uri"])
    ("; there is 'url': did you mean 'uri'?", '')

    What stands before the last dot is no likeness, and a key elsewhere is another one.

    >>> instead_of("auth.type", ["type"]), instead_of("auth.oauth2.token_url", ["auth.oauth2.client_id"])
    ('', '')
    """
    place, _, name = missing.rpartition(".")
    parted = ((key, key.rpartition(".")) for key in given)
    near = next((key for key, (above, _, last) in parted if above == place and near_words(last, [name])), None)
    return "" if near is None else f"; there is {near!r}: {did_you_mean([missing])}"


def read_document(path: str) -> Entry | None:
    """Read a YAML file; null if it holds nothing."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else (error.strerror or "").lower()
        raise UsageError(f"cannot read configuration file {path!r}: {reason}", path=path) from error
    return parse_document(text, path)


def with_mapping(path: str | None, key: str, name: str, values: Mapping[str, str]) -> str:
    """The text of a file's document, or of an empty one, with a mapping of texts added as `key.name`.

    Scalars keep their spelling: `22:00` stays the time that it is.
    """
    added = yaml.MappingNode(_TAG_MAP, [(_text_node(one), _text_node(value)) for one, value in values.items()])
    entry = (_text_node(name), added)
    root: yaml.Node | None = None
    # What is wrong with a file is for `read_document` to say.
    if path is not None and read_document(path) is not None:
        root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    root = root or yaml.MappingNode(_TAG_MAP, [])
    below = next((node for known, node in root.value if known.value == key), None)
    if below is None:
        root.value.append((_text_node(key), yaml.MappingNode(_TAG_MAP, [entry])))
    elif not isinstance(below, yaml.MappingNode):
        raise UsageError(f"key {key!r} of {path!r} is no mapping; give names with properties")
    elif any(known.value == name for known, _ in below.value):
        raise UsageError(f"{key}.{name} is in {path!r} too; leave it out of one of the two")
    else:
        below.value.append(entry)
    return str(yaml.serialize(root))


def _text_node(text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style='"')


def parse_document(text: str, path: str) -> Entry | None:
    # Only nodes are composed and nothing is constructed, so no tag can make an object.
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        # The exception quotes the line, which may hold a secret; neither its text nor its chain may go on.
        raise UsageError(f"configuration file {path!r} is not YAML: {_what_is_wrong(error)}", path=path) from None
    except RecursionError:
        raise UsageError(f"configuration file {path!r} is nested deeper than {_MAX_DEPTH} levels", path=path) from None
    if node is None or _kind(node) == "null":
        return None
    return _Tree(path, max(_MIN_ENTRIES, len(text))).entry(node, "", depth=0)


class _Tree:
    """Makes entries of nodes; an alias is made anew wherever it stands.

    Without aliases a text has fewer entries than characters. A few lines of aliases of aliases would have millions.

    Args:
        limit: how many entries are made.
    """

    def __init__(self, path: str, limit: int) -> None:
        self._path, self._limit, self._count = path, limit, 0

    def entry(self, node: yaml.Node, key_path: str, depth: int) -> Entry:
        place = f"{self._path}, line {node.start_mark.line + 1}"
        self._count += 1
        if self._count > self._limit:
            raise ConfigError(
                key_path,
                f"makes the file expand to more than {self._limit:,} entries through aliases; use fewer aliases ({place})",
            )
        if depth > _MAX_DEPTH:
            raise ConfigError(key_path, f"is nested deeper than {_MAX_DEPTH} levels ({place})")
        value: Mapping[str, Entry] | tuple[Entry, ...] | str
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, key_path, depth)
        elif isinstance(node, yaml.SequenceNode):
            value = tuple(self.entry(item, f"{key_path}[{n}]", depth + 1) for n, item in enumerate(node.value))
        elif node.tag in _PLAIN_TAGS:
            value = str(node.value)
        else:
            raise ConfigError(key_path, f"has a tag, which is not allowed here ({place})")
        return Entry(key_path, place, _kind(node), value)

    def _mapping(self, node: yaml.MappingNode, key_path: str, depth: int) -> dict[str, Entry]:
        below: dict[str, Entry] = {}
        for key, item in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not key.value:
                raise ConfigError(key_path, f"a key below it is not a plain word ({self._path}, line {line})")
            item_path = f"{key_path}.{key.value}" if key_path else str(key.value)
            if key.value in below:
                raise ConfigError(item_path, f"is given twice ({self._path}, line {line})")
            below[key.value] = self.entry(item, item_path, depth + 1)
        return below


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    if isinstance(node, yaml.SequenceNode):
        return "sequence"
    kind = str(node.tag).rpartition(":")[2]
    return "str" if kind in ("merge", "value") else kind


def _what_is_wrong(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "it holds a character that YAML does not allow"
    # What stands in quotes may be a piece of a value.
    problem = re.sub(r"'[^']{2,}'|\"[^\"]{2,}\"", "...", error.problem or "it cannot be parsed")
    return f"{problem} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
