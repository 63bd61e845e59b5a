"""A YAML file as a tree of entries that know the path of their key and their line, strict where YAML is lax.

`checked` holds the tree against a type and raises a `ConfigError` that names the key and the line. Scalars keep the text that was
written, so that a property `NO` or `010` reaches a catalog as it stands. What a value is never shows in a message or a `repr`: it
may be a secret.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from icekeep.decoding import from_plain
from icekeep.errors import ConfigError, UsageError
from icekeep.spelling import did_you_mean, near_words

V = TypeVar("V")

_MAX_DEPTH = 20
_MIN_ENTRIES = 10_000
_TAG_MAP = "tag:yaml.org,2002:map"
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_TRUE_WORDS = frozenset({"true", "yes", "on"})
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,99}")
_NUMBERS = frozenset({"int", "float"})
_OF_NO_TYPE = object()
"""A date, or a number that is too long or in a spelling that only YAML has: no type of a shape takes it."""

_KINDS = {
    "null": "no value",
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a date",
    "mapping": "keys with values",
    "sequence": "a list",
}
"""How an error names what it found, and below what msgspec expected."""
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "keys with values",
}
_ERROR = re.compile(r"(.*?)(?: - at `\$([\w.\[\]]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.{3})\]")
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_LEAST = re.compile(r"Expected `(\w+)` >= (.+)")
_EXPECTED = re.compile(r"Expected `([\w |]+)`, got .*")


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

    def wrong_type(self, wanted: str) -> ConfigError:
        return self.wrong(f"should be {wanted}, but is {_KINDS.get(self.kind, self.kind)}")

    def missing(self, key: str, form: str = "") -> ConfigError:
        """The error of a key that must be below; `form` is what to give."""
        problem = f"is missing{form and f'; give {form}'}{instead_of(key, self.mapping())}"
        return ConfigError(f"{self.key_path}.{key}", f"{problem} ({self.place})")

    def mapping(self) -> Mapping[str, "Entry"]:
        if not isinstance(self.value, Mapping):
            raise self.wrong_type("keys with values")
        return self.value

    def below(self, key: str) -> Mapping[str, "Entry"]:
        """The entries below one of the keys; none where it is not there."""
        found = self.mapping().get(key)
        return {} if found is None else found.mapping()

    def scalar(self) -> str:
        """The text of any scalar but null, as it is written."""
        if not isinstance(self.value, str) or self.kind == "null":
            raise self.wrong_type("a single value")
        return self.value

    def parsed(self, parse: Callable[[str], V], text: str | None = None) -> V:
        """What a text means, by default that of a scalar; `parse` raises `UsageError` where it means nothing."""
        try:
            return parse(self.scalar() if text is None else text)
        except UsageError as error:
            if isinstance(error, ConfigError):
                raise
            raise self.wrong(error.message) from None

    def word(self, known: Collection[str]) -> str:
        """A text that is one of a few."""
        text = self.scalar()
        if text not in known:
            raise self.wrong(f"is {text!r}; {_meant(text, known)}")
        return text

    def each(self) -> "tuple[Entry, ...]":
        """The entries of a list, or the entry itself."""
        return self.value if isinstance(self.value, tuple) else (self,)

    def plain(self) -> Any:
        """The value as a type takes it."""
        if isinstance(self.value, Mapping):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, tuple):
            return [entry.plain() for entry in self.value]
        match self.kind:
            case "str":
                return self.value
            case "null":
                return None
            case "bool":
                return self.value.lower() in _TRUE_WORDS
            case "int" if _WHOLE_NUMBER.fullmatch(self.value):
                return int(self.value)
            case "float" if _NUMBER.fullmatch(self.value):
                return float(self.value)
        return _OF_NO_TYPE


def checked(entry: Entry, shape: Any) -> Any:
    """The value of an entry as a type; raises `ConfigError` where it, or something below it, is none."""
    try:
        return from_plain(entry.plain(), shape)
    except msgspec.ValidationError as error:
        found = _ERROR.fullmatch(str(error))
    assert found is not None
    for key, index in _STEP.findall(found[2] or ""):
        shape = _type_below(shape, key)
        if key:
            entry = entry.mapping()[key]
        elif index.isdigit():
            entry = entry.each()[int(index)]
        else:
            # msgspec does not say below which key of a mapping with free keys.
            for below in entry.mapping().values():
                checked(below, shape)
    raise _explained(found[1], entry, shape)


def _explained(problem: str, entry: Entry, shape: Any) -> ConfigError:
    """The error for people of what msgspec says of an entry."""
    if match := _FIELD.fullmatch(problem):
        if match[1] == "missing required":
            return entry.missing(match[2])
        known = sorted(one.encode_name for one in _fields(shape))
        return entry.mapping()[match[2]].wrong(f"there is no such key; {_meant(match[2], known)}")
    if match := _LEAST.fullmatch(problem):
        return entry.wrong(f"is {entry.value}; give {_TYPES[match[1]]} of {float(match[2]):g} or more")
    if match := _EXPECTED.fullmatch(problem):
        expected = [one for one in match[1].split(" | ") if one != "null"]
        title = next((one.title for one in _parts(shape) if isinstance(one, msgspec.Meta) and one.title), None)
        wanted = title or " or ".join(_TYPES.get(one, one) for one in expected)
        if entry.kind in _NUMBERS and not _NUMBERS.isdisjoint(expected) and entry.plain() is _OF_NO_TYPE:
            return entry.wrong(f"should be {wanted} in decimal digits alone, with no 0 before them")
        return entry.wrong_type(wanted)
    # A text or a list that holds nothing: no shape asks for more of either.
    return entry.wrong("is empty")


def _meant(word: str, known: Collection[str]) -> str:
    near = near_words(word, known)
    return did_you_mean(near) if near else f"there is {', '.join(known)}"


def _parts(shape: Any) -> Iterator[Any]:
    """A type, or the types that it joins, and what is said beside them."""
    if get_origin(shape) is Annotated:
        yield from shape.__metadata__
        yield from _parts(get_args(shape)[0])
    elif get_origin(shape) in (Union, UnionType):
        for one in get_args(shape):
            yield from _parts(one)
    else:
        yield shape


def _fields(shape: Any) -> tuple[Any, ...]:
    return next(msgspec.structs.fields(one) for one in _parts(shape) if hasattr(one, "__struct_fields__"))


def _type_below(shape: Any, key: str) -> Any:
    """The type of what lies below a key; without one of what a list, or a mapping with free keys, holds."""
    if key:
        return next(one.type for one in _fields(shape) if one.encode_name == key)
    return next(get_args(one)[-1] for one in _parts(shape) if get_origin(one) in (list, dict))


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
