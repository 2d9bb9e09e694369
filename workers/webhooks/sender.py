"""Delivers webhooks: signed by the Standard Webhooks rules, guarded, with back-off."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import logging
import random
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from standardwebhooks import Webhook

from workers.webhooks.outbound_address import AddressRefused, Target, resolve_target

if TYPE_CHECKING:
    from workers.store.clock import Clock
    from workers.store.webhooks import OutboxEvent, WebhookOutbox

_logger = logging.getLogger(__name__)
TIMEOUT_S = 15.0
BACKOFF_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
_JITTER = 0.1
_MAX_RETRY_AFTER_S = 86_400
_GONE = 410


def webhook_secret(configured: str, data_dir: Path) -> str:
    """The signing secret: the configured one, or one made once for the data folder."""
    if configured:
        return configured
    path = data_dir / "webhook-secret.txt"
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        made = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        scratch = path.with_suffix(f".{secrets.token_hex(4)}")
        scratch.touch(mode=0o600)
        scratch.write_text(made + "\n", encoding="utf-8")
        try:
            path.hardlink_to(scratch)
        except FileExistsError:
            _logger.info("another process made the webhook secret first")
        scratch.unlink()
    return path.read_text(encoding="utf-8").strip()


class WebhookSender:
    """Sends what is due, a few at a time.

    At least once, with the same id and bytes at each try. No redirects; 15 s in all; 410 ends
    everything that waits for the URL; a refused address is given up at once.
    """

    def __init__(
        self,
        outbox: WebhookOutbox,
        secret: str,
        *,
        allow_private: bool,
        clock: Clock,
        backoff_s: tuple[float, ...] = BACKOFF_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Send from `outbox`, signing with `secret`; `transport` replaces the network."""
        self._outbox = outbox
        self._signer = Webhook(secret)
        self._allow_private = allow_private
        self._clock = clock
        self._backoff_s = backoff_s
        self._transport = transport

    async def send_due(self, limit: int = 20) -> int:
        """Try every event that is due, at most `limit`; how many were tried."""
        events = await asyncio.to_thread(self._outbox.due, limit)
        if events:
            await asyncio.gather(*(self._send(event) for event in events))
        return len(events)

    async def _send(self, event: OutboxEvent) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                response = await self._post(event)
        except AddressRefused as error:
            await asyncio.to_thread(self._outbox.failed, event.id, str(error), None)
            _logger.warning("webhook %s is given up: %s", event.id, error)
            return
        except (httpx.HTTPError, OSError, TimeoutError, ValueError) as error:
            await self._failed(event, f"{type(error).__name__}: {error}", None)
            return
        await self._record(event, response)

    async def _post(self, event: OutboxEvent) -> httpx.Response:
        target = await resolve_target(event.url, allow_private=self._allow_private)
        async with httpx.AsyncClient(
            transport=self._transport, follow_redirects=False, trust_env=False, timeout=TIMEOUT_S
        ) as client:
            request = client.build_request(
                "POST",
                _address_url(target),
                content=event.body,
                headers=self._headers(event, target),
                extensions={"sni_hostname": target.host},
            )
            response = await client.send(request, stream=True)
            await response.aclose()
            return response

    def _headers(self, event: OutboxEvent, target: Target) -> dict[str, str]:
        now = self._clock()
        is_default = target.port == {"https": 443, "http": 80}[target.scheme]
        host = f"[{target.host}]" if ":" in target.host else target.host
        return {
            "host": host if is_default else f"{host}:{target.port}",
            "content-type": "application/json",
            "user-agent": "lanewise-webhooks",
            "webhook-id": event.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(event.id, now, event.body.decode()),
        }

    async def _record(self, event: OutboxEvent, response: httpx.Response) -> None:
        if response.is_success:
            await asyncio.to_thread(self._outbox.delivered, event.id)
            return
        text = f"the receiver answered {response.status_code}"
        if response.status_code == _GONE:
            await asyncio.to_thread(self._outbox.failed, event.id, text, None)
            await asyncio.to_thread(self._outbox.refused, event.url, text)
            return
        await self._failed(event, text, _retry_after_s(response, self._clock()))

    async def _failed(self, event: OutboxEvent, text: str, at_least_s: float | None) -> None:
        retry_at = None
        if event.num_tries < len(self._backoff_s):
            wait_s = self._backoff_s[event.num_tries] * (1 + random.uniform(0, _JITTER))
            retry_at = self._clock() + timedelta(seconds=max(wait_s, at_least_s or 0))
        _logger.info("webhook %s failed (%s); again at %s", event.id, text, retry_at)
        await asyncio.to_thread(self._outbox.failed, event.id, text, retry_at)


def _address_url(target: Target) -> str:
    host = f"[{target.address}]" if ":" in target.address else target.address
    return f"{target.scheme}://{host}:{target.port}{target.path}"


def _retry_after_s(response: httpx.Response, now: datetime) -> float | None:
    """Seconds of a Retry-After header, as number or date; at most a day."""
    text = response.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(min(int(text[:9]), _MAX_RETRY_AFTER_S))
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max((when - now).total_seconds(), 0.0), _MAX_RETRY_AFTER_S)
