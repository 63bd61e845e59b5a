"""Values of table properties, read in one way wherever they are honoured."""

from collections.abc import Mapping

from icekeep.errors import UsageError


def boolean_property(properties: Mapping[str, str], key: str, default: bool) -> bool:
    """`true` or `false` in any case, the default where the table says nothing; raises `UsageError` for anything else."""
    text = properties.get(key)
    if text is None:
        return default
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise UsageError(f"table property {key!r} is {text!r}; set 'true' or 'false'", property=key)
    return value
