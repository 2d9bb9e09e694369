"""API keys, for admins."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from service.auth import AdminKey
from service.context import GatewayDep
from service.errors import BadRequest
from service.http.body import read_json, validate
from service.http.openapi import errors, json_body
from service.schemas.keys import KeyBody, KeyList, KeyView, NewKeyView

router = APIRouter(tags=["keys"])


@router.post(
    "/keys",
    status_code=201,
    summary="Make an API key",
    responses=errors(413, 415),
    openapi_extra=json_body(KeyBody),
)
async def create_key(request: Request, gateway: GatewayDep, _: AdminKey) -> NewKeyView:
    """Make a key; its secret is in this answer and nowhere else."""
    body = validate(KeyBody, await read_json(request))
    key, secret = await run_in_threadpool(
        gateway.client.store.keys.create, body.name, tuple(body.scopes)
    )
    return NewKeyView.model_validate(asdict(key) | {"secret": secret})


@router.get("/keys", summary="List the API keys", responses=errors())
def list_keys(gateway: GatewayDep, _: AdminKey) -> KeyList:
    """All keys, revoked ones too."""
    keys = gateway.client.store.keys.list()
    return KeyList(data=[KeyView.model_validate(asdict(key)) for key in keys])


@router.delete("/keys/{key_id}", summary="Revoke an API key", responses=errors(404))
def revoke_key(key_id: str, gateway: GatewayDep, key: AdminKey) -> KeyView:
    """End a key for ever. The key that asks cannot end itself."""
    if key_id == key.key_id:
        raise BadRequest("A key cannot revoke itself; use another admin key.", param="key_id")
    revoked = gateway.client.store.keys.revoke(key_id)
    gateway.recent_keys.forget()
    return KeyView.model_validate(asdict(revoked))
