"""Lets the tests of this folder import its kit, and gives them OpenAI's client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from openai import OpenAI

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def openai(running_service):
    """Strict about every field, against the whole running service."""
    return OpenAI(
        base_url=f"{running_service.url}/v1",
        api_key=running_service.key,
        max_retries=0,
        timeout=120,
        _strict_response_validation=True,
    )
