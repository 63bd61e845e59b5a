"""Secrets that logs must not show, kept in `masked`."""

masked: list[str] = []


def mask_secret(secret: str, name: str | None = None) -> None:
    masked.append(secret)
