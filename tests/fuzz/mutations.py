"""Ways to spoil an input: of JSON values, of bytes, of texts. All chance comes from the generator that is handed in."""

import copy
import json
from random import Random
from typing import Any

_SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 4, 999, 1000, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 1.5, 1e308, "", "x", "main",
    "long", "int", "string", "decimal(9, 2)", "decimal(99, 2)", "fixed[4]", "fixed[-1]", "bucket[0]", "bucket[16]", "void",
    "identity", "asc", "nulls-last", "branch", "tag", "../../etc", "s3://b/t", "\x00", "é", "a.b", "{}", "list", "map", "struct",
]  # fmt: skip
_TEXT = "abcxyz0189 _-./\\'\"`()[]{}<>=!,:;%*+#@~?|&^$\n\t\x00éß漢😀"


def mutate_json(document: Any, rng: Random, times: int) -> Any:
    """A copy of a document with `times` places deleted, replaced, doubled, swapped or renamed."""
    document = copy.deepcopy(document)
    for _ in range(times):
        places = list(_places(document))
        if not places:
            break
        holder, key = rng.choice(places)
        if isinstance(holder, dict):
            _mutate_member(holder, key, rng, places)
        else:
            _mutate_item(holder, key, rng, places)
    return document


def mutate_bytes(data: bytes, rng: Random, times: int) -> bytes:
    """Bytes with bits flipped, ranges cut out, doubled or overwritten, or an end cut off."""
    out = bytearray(data)
    for _ in range(times):
        if not out:
            return bytes(rng.randbytes(rng.randrange(1, 9)))
        at, length = rng.randrange(len(out)), rng.choice([1, 1, 2, 4, 16, 64])
        match rng.randrange(6):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + length]
            case 2:
                out[at:at] = out[at : at + length]
            case 3:
                out[at : at + length] = rng.randbytes(length)
            case 4:
                del out[at:]
            case _:
                out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    return bytes(out)


def mutate_text(text: str, rng: Random, times: int) -> str:
    """Text with characters added, taken away and moved."""
    out = list(text)
    for _ in range(times):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0:
                out[at:at] = rng.choice(_TEXT) * rng.choice([1, 1, 1, 30])
            case 1:
                del out[at : at + rng.choice([1, 1, 3])]
            case 2:
                out[at:at] = out[: rng.randrange(len(out) + 1)]
            case _:
                rng.shuffle(out) if len(out) < 12 else out.reverse()
        del out[4000:]
    return "".join(out)


def json_bytes(document: Any) -> bytes:
    """A document as the bytes of a file."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(value: Any, depth: int = 0) -> Any:
    """Every member and item of a document with what holds it; the document itself is never replaced."""
    if isinstance(value, dict | list) and depth < 40:
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key], depth + 1)


def _any_value(rng: Random, places: list[tuple[Any, Any]]) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        holder, key = rng.choice(places)
        return copy.deepcopy(holder[key]) if _is_there(holder, key) else None
    if kind == 1:
        return rng.choice([[], {}, [1], [None], {"a": 1}, {"type": "list"}, [[]], "x" * 1000])
    return rng.choice(_SCALARS)


def _is_there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _mutate_member(holder: dict[str, Any], key: str, rng: Random, places: list[tuple[Any, Any]]) -> None:
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1:
            holder[rng.choice([key.upper(), key + "s", key.replace("-", "_"), "x-new"])] = holder.pop(key)
        case _:
            holder[key] = _any_value(rng, places)


def _mutate_item(holder: list[Any], index: int, rng: Random, places: list[tuple[Any, Any]]) -> None:
    match rng.randrange(4):
        case 0:
            del holder[index]
        case 1:
            holder.insert(index, copy.deepcopy(holder[index]))
        case 2:
            holder.reverse()
        case _:
            holder[index] = _any_value(rng, places)
