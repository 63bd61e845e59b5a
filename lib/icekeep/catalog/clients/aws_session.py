"""Whom a client is to AWS: keys, a profile and a region, by PyIceberg's properties, else as all of Amazon's clients find out."""

from typing import Any

import boto3

from icekeep.catalog.clients.settings import Settings

_GIVEN = {
    "profile_name": "profile-name",
    "region_name": "region",
    "aws_access_key_id": "access-key-id",
    "aws_secret_access_key": "secret-access-key",
    "aws_session_token": "session-token",
}


def aws_session(settings: Settings, *groups: str) -> Any:
    """boto3's session by properties such as `glue.region`; a property of an earlier group wins."""
    return boto3.Session(
        **{name: settings.text(*(f"{group}.{key}" for group in groups)) for name, key in _GIVEN.items()}
    )
