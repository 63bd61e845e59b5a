"""Lists as GitHub reads them, written as the site's Markdown reads them: what belongs to an item is set in by four spaces."""

import re

_ITEM = re.compile(r"(?:[*-]|\d+\.) +(?=\S)")
_FENCE = re.compile(r" *(```|~~~)")
_SET_IN = 4


def set_in(markdown: str) -> str:
    """A page whose items' further paragraphs, code and lists are set in by four spaces, and end with an empty line."""
    lines: list[str] = []
    offset, fence, is_after_empty, has_paragraphs = 0, "", False, False
    for line in markdown.splitlines():
        mark = _FENCE.match(line)
        if mark and (not fence or fence == mark[1]):
            fence = "" if fence else mark[1]
        item = _ITEM.match(line) if not fence else None
        if item:
            if has_paragraphs and not is_after_empty:
                lines.append("")
            offset, has_paragraphs = min(len(item[0]), _SET_IN), False
        elif line.strip() and not line.startswith(" " * max(offset, 1)) and (is_after_empty or mark):
            offset = 0
        is_inside = offset and not item and line.strip() and line.startswith(" " * offset)
        has_paragraphs = bool(offset) and (has_paragraphs or bool(is_inside and is_after_empty))
        lines.append(" " * (_SET_IN - offset) + line if is_inside else line)
        is_after_empty = not line.strip()
    return "\n".join(lines) + "\n"
