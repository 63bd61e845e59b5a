"""A page as a reader of HTML takes it: what opens and closes, what it says, where it leads."""

from html.parser import HTMLParser

_WITHOUT_END = {"meta", "link", "br", "wbr", "input", "img", "hr"}


class Page(HTMLParser):
    """A parsed page; tags that do not match are an `AssertionError`.

    Attributes:
        tags: each tag that opens, with its attributes, in order.
        texts: by tag the texts that stand in it; those of `script` and `style` are none of the page's own.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    @property
    def text(self) -> str:
        """All that can be read; a place where a line may break is nothing."""
        return "".join(text for tag, text in self.texts if tag not in ("script", "style"))

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """The tags and the names of their attributes, but for places where a line may break."""
        return [(tag, (*attributes,)) for tag, attributes in self.tags if tag != "wbr"]

    def of(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all tags of a name."""
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, attribute: str) -> list[str]:
        """The values of an attribute, of whatever tag."""
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len({*names}), f"{tag} has an attribute twice: {names}"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _WITHOUT_END:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes {self._open}"

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))
