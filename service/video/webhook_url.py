"""Webhook addresses, checked when they are registered; delivery checks the resolved hosts again."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from service.errors import FieldError

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?")
_LOOKS_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
_PORTS = {None, 80, 443}
_PARAM = "webhook_url"


def check_webhook_url(url: str, *, may_be_private: bool) -> None:
    """Return if `url` may be called: https, no credentials, a host that can be public.

    `may_be_private` lifts the rule about hosts and ports, and allows http.

    Raises: FieldError saying what to change.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _bad(f"does not parse: {str(error)[:80]}") from error
    schemes = ("https", "http") if may_be_private else ("https",)
    if parts.scheme not in schemes:
        raise _bad(f"must begin with {' or '.join(s + '://' for s in schemes)}")
    if any(char.isspace() or not char.isprintable() for char in url) or "\\" in url:
        raise _bad("holds a character that no address has")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _bad("may hold neither a user name nor a fragment")
    if not may_be_private:
        _check_public(host, port)
    elif not host:
        raise _bad("has no host")


def _check_public(host: str, port: int | None) -> None:
    if port not in _PORTS:
        raise _bad(f"has the port {port}; use 443")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None:
        mapped = getattr(address, "ipv4_mapped", None) or address
        if not mapped.is_global:
            raise _bad("names a private address")
        return
    plain = host.rstrip(".")
    if not _HOST.fullmatch(host) or _LOOKS_NUMERIC.fullmatch(plain.rpartition(".")[2]):
        raise _bad("has no valid host name")
    if plain == "localhost" or plain.endswith((".localhost", ".local", ".internal")):
        raise _bad("names a private host")


def _bad(text: str) -> FieldError:
    return FieldError(_PARAM, f"{_PARAM} {text}.")
