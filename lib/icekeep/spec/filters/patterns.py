"""Patterns of LIKE that a filter can use: a prefix and one `%` after it, or no wildcard at all."""

_SUPPORTED = "LIKE takes a prefix with one % at its end, as in 'abc%'"


def read_pattern(pattern: str, escape: str = "\\") -> tuple[str, bool]:
    r"""The text that a pattern asks for, and whether it is the whole value rather than a prefix.

    >>> read_pattern("ab%"), read_pattern(r"10\%")
    (('ab', False), ('10%', True))

    Args:
        escape: the character that takes its meaning from a wildcard, or from itself, after it.

    Raises:
        ValueError: there is another wildcard, or the escape stands before something else.
    """
    text: list[str] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == escape:
            position += 1
            escaped = pattern[position : position + 1]
            if escaped not in ("%", "_", escape):
                raise ValueError(f"the escape {escape} stands before %, _ or {escape} only")
            text.append(escaped)
        elif character == "%":
            if position != len(pattern) - 1:
                raise ValueError(f"{_SUPPORTED}; escape another % as {escape}%")
            return "".join(text), False
        elif character == "_":
            raise ValueError(f"{_SUPPORTED}; the wildcard _ is not supported, escape it as {escape}_")
        else:
            text.append(character)
        position += 1
    return "".join(text), True
