"""Who is asking: bearer keys, and signed URLs where a browser cannot send a header."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from service.context import Gateway, GatewayDep
from service.errors import Forbidden, Unauthorized
from workers.store.keys import ApiKey

ADMIN = "admin"
LOCAL_KEY_ID = "local"
_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer sk-…`")


@dataclass(frozen=True, slots=True)
class Principal:
    """The key behind a request. An admin sees every tenant's jobs."""

    key_id: str
    scopes: frozenset[str]

    @property
    def is_admin(self) -> bool:
        """Whether the key may manage keys and see everything."""
        return ADMIN in self.scopes

    @property
    def sees(self) -> str | None:
        """The tenant whose rows are visible; None is all of them."""
        return None if self.is_admin else self.key_id

    def may(self, scopes: tuple[str, ...]) -> bool:
        """Whether any of `scopes` is granted."""
        return self.is_admin or not self.scopes.isdisjoint(scopes)


LOCAL = Principal(key_id=LOCAL_KEY_ID, scopes=frozenset({ADMIN}))


async def authenticate(
    request: Request, gateway: GatewayDep, _: Annotated[object, Depends(_bearer)] = None
) -> Principal:
    """The owner of the bearer key; everyone is the local admin where keys are off.

    Only the look-up takes a thread: each visit to one delays the first token.
    """
    if gateway.settings.auth == "off":
        return LOCAL
    headers = request.headers.getlist("authorization")
    if len(headers) != 1:
        raise Unauthorized(
            "Send exactly one header `Authorization: Bearer sk-…`; "
            f"this request has {len(headers)} of them."
        )
    scheme, _, secret = headers[0].partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthorized("The Authorization header is not of the form `Bearer sk-…`.")
    key = await _verified(gateway, secret.strip())
    if key is None:
        raise Unauthorized("This API key is not known, or was revoked.")
    return Principal(key_id=key.id, scopes=frozenset(key.scopes))


async def _verified(gateway: Gateway, secret: str) -> ApiKey | None:
    async def look_up() -> ApiKey | None:
        return await run_in_threadpool(gateway.client.store.keys.verify, secret)

    return await gateway.recent_keys.verified(secret, look_up)


async def authenticate_or_signed(
    request: Request, gateway: GatewayDep, _: Annotated[object, Depends(_bearer)] = None
) -> Principal:
    """As `authenticate`, but a valid signature in the query does as well."""
    if "sig" not in request.query_params or gateway.settings.auth == "off":
        return await authenticate(request, gateway)
    query = request.query_params
    key_id = gateway.signer.check(
        request.scope["path"], exp=query.get("exp", ""), key=query.get("kid", ""), sig=query["sig"]
    )
    if key_id is None:
        raise Forbidden("The link has expired or was altered; ask for a new one.", code="bad_link")
    if key_id == "*":
        return Principal(key_id=key_id, scopes=frozenset({ADMIN}))
    return Principal(key_id=key_id, scopes=frozenset({"read"}))


def _needs(*scopes: str) -> Callable[[Principal], Awaitable[Principal]]:
    async def check(principal: Annotated[Principal, Depends(authenticate)]) -> Principal:
        if not principal.may(scopes):
            raise Forbidden(f"This key lacks the scope {' or '.join(scopes)}.")
        return principal

    return check


async def _reads_by_link(
    principal: Annotated[Principal, Depends(authenticate_or_signed)],
) -> Principal:
    if not principal.may(("video", "read")):
        raise Forbidden("This key lacks the scope video or read.")
    return principal


AnyKey = Annotated[Principal, Depends(authenticate)]
ChatKey = Annotated[Principal, Depends(_needs("chat"))]
VideoKey = Annotated[Principal, Depends(_needs("video"))]
ReadKey = Annotated[Principal, Depends(_needs("video", "read"))]
AdminKey = Annotated[Principal, Depends(_needs(ADMIN))]
LinkKey = Annotated[Principal, Depends(_reads_by_link)]
