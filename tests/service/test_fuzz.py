"""Whatever JSON comes, the answer is never a server error and always has our error shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from fastapi import FastAPI
from gateway_kit import LLM, VIDEO, caller
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUIET = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        [LLM, VIDEO, "user", "text", "file-x", "data:image/png;base64,AAAA", "1x1", "\ud800", "\0"]
    ),
)
NAMES = [
    "model", "messages", "role", "content", "type", "text", "temperature", "n", "stop", "stream",
    "stream_options", "logit_bias", "seed", "metadata", "tools", "response_format", "image",
    "prompt", "seconds", "size", "width", "tags", "priority", "webhook_url", "name", "scopes",
    "shots", "shot", "dry_run", "input_reference", "seeds", "image_url", "url",
    "tool_choice", "structured_outputs", "json", "regex", "choice", "grammar", "json_schema",
    "schema", "function", "parameters", "tool_calls", "tool_call_id", "chat_template_kwargs",
    "reasoning_effort", "echo", "logprobs", "max_tokens", "stop_token_ids", "deadline_s",
]  # fmt: skip
KEYS = st.one_of(st.sampled_from(NAMES), st.text(max_size=6))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=6)
TEMPLATES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": LLM, "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": LLM, "prompt": "x"},
    "/jobs": {"prompt": "x", "image": "file-x"},
    "/v1/videos": {"prompt": "x", "input_reference": "file-x"},
    "/batches": {"name": "x", "shots": [{"shot": "1", "image": "file-x", "prompt": "p"}]},
    "/keys": {"name": "x"},
    "/v1/videos/job_x/remix": {"prompt": "x"},
}
PATHS = [
    "/jobs/{}",
    "/jobs/{}/events",
    "/v1/videos/{}",
    "/v1/files/{}",
    "/batches/{}",
    "/v1/models/{}",
    "/jobs/{}/artifacts/{}",
    "/jobs?after={}",
    "/jobs?tag={}",
    "/v1/files?after={}",
    "/batches?after={}",
]


def check(answer: httpx.Response) -> None:
    """Not a server error; an error has a message."""
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]


def send(app: FastAPI, key: str, path: str, body: bytes) -> httpx.Response:
    async def post() -> httpx.Response:
        async with caller(app, key) as http:
            return await http.post(path, content=body, headers={"Content-Type": "application/json"})

    return asyncio.run(post())


@given(path=st.sampled_from(sorted(TEMPLATES)), body=BODIES, has_template=st.booleans())
@QUIET
def test_any_json_body(
    app: FastAPI, admin_key: str, path: str, body: dict[str, Any], has_template: bool
) -> None:
    merged = {**TEMPLATES[path], **body} if has_template else body
    check(send(app, admin_key, path, json.dumps(merged).encode()))


@given(path=st.sampled_from(sorted(TEMPLATES)), body=st.binary(max_size=60))
@QUIET
def test_any_bytes(app: FastAPI, admin_key: str, path: str, body: bytes) -> None:
    answer = send(app, admin_key, path, body)
    assert 400 <= answer.status_code < 500
    check(answer)


@given(path=st.sampled_from(PATHS), text=st.text(max_size=20))
@QUIET
def test_any_path_and_query(app: FastAPI, admin_key: str, path: str, text: str) -> None:
    from urllib.parse import quote

    raw = quote(text.encode("utf-8", "surrogatepass"), safe="")

    async def get() -> httpx.Response:
        async with caller(app, admin_key) as http:
            return await http.get(path.format(raw, raw))

    check(asyncio.run(get()))
