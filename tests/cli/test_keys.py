"""`lanewise keys` on a store of its own."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from service.cli import main
from workers.settings import Settings
from workers.store import open_store


@pytest.fixture
def keys(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, ["keys", *arguments, "--data", str(tmp_path)])

    return run


def test_a_key_is_printed_once_works_and_is_revoked(keys, tmp_path):
    made = keys("create", "render farm", "--scope", "video")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert secret.startswith("sk-")
    settings = Settings(data_dir=tmp_path)
    store = open_store(settings.resolved_database_url, settings.resolved_artifact_url)
    known = store.keys.verify(secret)
    assert known is not None
    assert known.scopes == ("video",)

    listed = json.loads(keys("list", "--json").stdout)
    assert [key["name"] for key in listed] == ["render farm"]
    assert secret not in keys("list").output
    assert known.id in keys("list").output

    assert keys("revoke", known.id).exit_code == 0
    assert store.keys.verify(secret) is None
    store.close()


def test_an_unknown_key_cannot_be_revoked(keys):
    result = keys("revoke", "key_nothing")
    assert result.exit_code == 1
    assert "key_nothing" in result.output


def test_a_scope_that_does_not_exist_is_wrong_usage(keys):
    result = keys("create", "x", "--scope", "everything")
    assert result.exit_code == 2
    assert "'chat', 'video', 'read', 'admin'" in result.output


def test_an_empty_store_says_how_to_make_a_key(keys):
    assert "lanewise keys create" in keys("list").output
