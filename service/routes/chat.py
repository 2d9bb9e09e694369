"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.auth import ChatKey
from service.catalog import find_llm
from service.chat.answer import ChatShape
from service.context import GatewayDep
from service.generation.head import Head
from service.generation.turn import Turn
from service.http.body import read_json, validate
from service.http.openapi import errors, json_body
from service.ids import make_chat_id
from service.plan_header import plan_headers
from service.schemas.chat import ChatBody
from service.schemas.chat_refusals import note_unknown, refuse_unsupported

router = APIRouter(tags=["chat"])
_KNOWN = frozenset(ChatBody.model_fields)


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation, whole or as a stream of chunks",
    response_model=None,
    responses=errors(404, 408, 413, 415, 429, 500, 503),
    openapi_extra=json_body(ChatBody),
)
async def create_chat_completion(request: Request, gateway: GatewayDep, key: ChatKey) -> Response:
    """OpenAI's chat completions, with tools, the three response formats and reasoning.

    Differences: `n` is at most 8; pictures, audio and the deprecated functions are refused by
    name. Extras: `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `stop_token_ids`,
    `include_stop_str_in_output`, `ignore_eos`, `structured_outputs`, `chat_template_kwargs`,
    `continue_final_message`, `priority` (smaller runs sooner) and `deadline_s` (408 when passed).
    `model` may be a LoRA adapter's name, or `model:adapter`. A prompt that fits is answered up to
    the end of the context (`finish_reason` "length") where `max_tokens` would pass it.
    The header `x-lanewise-plan` holds the hash of what the engine runs.
    """
    raw = await read_json(request)
    refuse_unsupported(raw)
    body = validate(ChatBody, raw)
    note_unknown(raw, _KNOWN)
    served = await find_llm(gateway, body.model)
    chat_id = make_chat_id()
    asked = body.to_request(
        chat_id,
        served.worker.llm,
        model=served.worker.model,
        adapter=served.adapter,
        tenant=key.key_id,
    )
    head = Head.now(chat_id, body.model, served.worker)
    shape = ChatShape(
        head,
        num_choices=body.n or 1,
        has_logprobs=bool(body.logprobs),
        has_usage=body.has_usage_chunk,
        metadata=body.metadata,
    )
    turn = Turn(gateway, [asked], shape, plan_headers(served.worker))
    return await turn.answer(request, is_streamed=bool(body.stream))
