"""Finding the running service, and calls to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import click
import httpx

from service.terminal import CommandFailed, ExitCode, exit_code_for
from workers.settings import Settings

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_STREAM_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
_START_IT = "start it with: lanewise serve"


class ServiceRefused(CommandFailed):
    """The service answered with an error."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        """Take the error object of the answer."""
        code = error.get("code")
        message = str(error.get("message") or f"The service answered {status}.")
        super().__init__(message, hint=_way_out(status, code), code=exit_code_for(code, status))
        self.status = status
        self.code = code


class Connection:
    """A running service and the key to it."""

    def __init__(self, url: str, key: str) -> None:
        """Take the address; nothing is dialled yet.

        Raises: CommandFailed for an address or a key that cannot be one.
        """
        if not (key.isascii() and key.isprintable()):
            text = "The key holds a character that no key has."
            raise CommandFailed(text, hint="copy it again", code=ExitCode.USAGE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = url.rstrip("/")
        try:
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=_TIMEOUT, trust_env=False
            )
        except httpx.InvalidURL as error:
            text = f"{self.url} is no address: {error}"
            raise CommandFailed(text, code=ExitCode.USAGE) from None

    def __enter__(self) -> Self:
        """Open for a `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the sockets."""
        self._client.close()

    def call(self, method: str, path: str, **content: Any) -> Any:  # noqa: ANN401 - JSON
        """One request and its parsed answer; `content` goes to httpx.

        Raises: CommandFailed when nothing answers, ServiceRefused for an error.
        """
        response = self._send(method, path, **content)
        return response.json() if response.content else None

    def upload(self, name: str, content: bytes) -> str:
        """Store a picture; the id of its file."""
        files = {"file": (name, content)}
        answer = self.call("POST", "/v1/files", files=files, data={"purpose": "vision"})
        return str(answer["id"])

    def download(self, path: str) -> Iterator[bytes]:
        """The bytes of a file of the service, piece by piece."""
        with self._reporting(), self._client.stream("GET", path) as response:
            self._check(response)
            yield from response.iter_bytes()

    def stream_events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """POST, then the JSON of each server-sent event until `[DONE]`."""
        stream = self._client.stream("POST", path, json=body, timeout=_STREAM_TIMEOUT)
        with self._reporting(), stream as response:
            self._check(response)
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:  # noqa: ANN401
        with self._reporting():
            response = self._client.request(method, path, **content)
            self._check(response)
        return response

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        try:
            error = response.json()["error"]
        except (ValueError, KeyError, TypeError):
            status = response.status_code
            error = {"message": f"{self.url} answered {status}, and not as lanewise does."}
        raise ServiceRefused(response.status_code, error)

    def _reporting(self) -> _Reporting:
        return _Reporting(self.url)


class _Reporting:
    """Turns httpx's errors into words."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            raise CommandFailed(f"Nothing answers at {self._url}.", hint=_START_IT) from None
        if isinstance(error, httpx.TimeoutException):
            raise CommandFailed(f"{self._url} did not answer in time.", hint="try again") from None
        if isinstance(error, UnicodeEncodeError):
            text = "The text holds bytes that are no UTF-8."
            hint = "convert it, for example with iconv"
            raise CommandFailed(text, hint=hint, code=ExitCode.USAGE) from None
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL):
            raise CommandFailed(f"The call to {self._url} broke off: {error}") from None


def connect(url: str | None, key: str | None, data: Path | None) -> Connection:
    """The service at `url`, or the one whose data folder is `data`.

    Raises: CommandFailed when the data folder has no running service.
    """
    folder = (data or Settings().data_dir).expanduser()
    if url:
        return Connection(url, key or "")
    try:
        endpoint = json.loads((folder / "run" / "endpoint.json").read_text())
    except FileNotFoundError:
        raise CommandFailed(
            f"No service runs on the data folder {folder}.",
            hint=f"{_START_IT} --data {folder}, or say where it is with --url and --key",
        ) from None
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{folder}/run/endpoint.json cannot be read: {error}") from None
    return Connection(endpoint["url"], key or _read_key(endpoint.get("key_file")))


def _read_key(path: str | None) -> str:
    if not path or not Path(path).is_file():
        return ""
    try:
        return Path(path).read_text().strip()
    except PermissionError:
        raise CommandFailed(
            f"{path} belongs to another user.", hint="give a key with --key"
        ) from None


def _way_out(status: int, code: str | None) -> str:
    if status == 401:
        return "give a key with --key, or make one with: lanewise keys create NAME"
    if status == 429:
        return "wait until some jobs have finished, then try again"
    if code == "no_worker_for_model":
        return "wait a little; the page and /readyz show when the worker is ready"
    return ""


def url_option(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Check an address given by hand, as click's callback."""
    if value is not None and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"{value!r} is no address; it begins with http:// or https://")
    return value
