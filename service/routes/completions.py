"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.auth import ChatKey
from service.catalog import find_llm
from service.completions.answer import CompletionShape
from service.context import GatewayDep
from service.generation.head import Head
from service.generation.turn import Turn
from service.http.body import read_json, validate
from service.http.openapi import errors, json_body
from service.ids import make_completion_id
from service.plan_header import plan_headers
from service.schemas.chat_refusals import note_unknown, refuse_replaced
from service.schemas.completions import CompletionBody

router = APIRouter(tags=["completions"])
_KNOWN = frozenset(CompletionBody.model_fields)


@router.post(
    "/v1/completions",
    summary="Continue texts or token ids, or score them",
    response_model=None,
    responses=errors(404, 408, 413, 415, 429, 500, 503),
    openapi_extra=json_body(CompletionBody),
)
async def create_completion(request: Request, gateway: GatewayDep, key: ChatKey) -> Response:
    """OpenAI's classic completions: one prompt or up to 128, as texts or token ids.

    `echo` puts the prompt in front; with `logprobs` it is scored, and with `max_tokens` 0 nothing
    is generated. `suffix` is refused, and so is `best_of` unless it equals `n`. The extras of the
    chat are taken here too.
    """
    raw = await read_json(request)
    refuse_replaced(raw)
    body = validate(CompletionBody, raw)
    note_unknown(raw, _KNOWN)
    served = await find_llm(gateway, body.model)
    answer_id = make_completion_id()
    asked = body.to_requests(
        answer_id,
        served.worker.llm,
        model=served.worker.model,
        adapter=served.adapter,
        tenant=key.key_id,
    )
    head = Head.now(answer_id, body.model, served.worker)
    turn = Turn(gateway, asked, CompletionShape(head, body), plan_headers(served.worker))
    return await turn.answer(request, is_streamed=bool(body.stream))
