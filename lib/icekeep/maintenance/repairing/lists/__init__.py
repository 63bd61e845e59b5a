"""Manifest lists and manifests that are gone: from the trash, or put together anew."""
