"""Asks a provider over httpx, without litellm, if it has one of the two most common APIs.

Imports httpx: import this module at first use only (0.1 s; litellm takes 2-4 s).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any

import httpx

from ohsandbox.llm import error_mapping
from ohsandbox.llm.anthropic_format import AnthropicFormat, anthropic_format, anthropic_key
from ohsandbox.llm.errors import ModelUnavailableError
from ohsandbox.llm.http_client import LITELLM_TLS, BoundedClient, is_json
from ohsandbox.llm.model_list import cost_usd, model_entry
from ohsandbox.llm.openai_format import OpenAIFormat, openai_format
from ohsandbox.llm.provider import Answer, Unfinished, current_attempt
from ohsandbox.llm.response_parsing import StreamedAnswer, content_text
from ohsandbox.llm.wire_format import server_events
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from ohsandbox.llm.config import LLMConfig
    from ohsandbox.llm.provider import ModelInfo, Provider
    from ohsandbox.llm.wire_format import WireFormat

CONNECT_TIMEOUT_S = 20.0
"""A host that does not accept a connection within this time is unreachable; timeout_s is for one that thinks."""
_FORMATS: dict[str, Callable[[LLMConfig, str], WireFormat | None]] = {
    "openai": openai_format,
    "anthropic": anthropic_format,
}
_LITELLM_ONLY = ("USE_LITELLM_PROXY", *LITELLM_TLS)
"""Variables that litellm obeys and httpx does not."""
_DONE = "[DONE]"
_READ_OUT_S = 0.25
"""Time to read on after the end of an answer: mostly five bytes, which come with it. Some servers never close a
stream."""


LIST_TIMEOUT_S = 5.0
"""Limit for listing models: a server does so at once, or is not waited for."""


class RefusedRequestError(Exception):
    """The provider answered with an HTTP status other than success; holds its message."""


class DirectProvider:
    """Satisfies `Provider` for a model of a known format; requests outside the format go through litellm."""

    def __init__(self, config: LLMConfig, wire_format: WireFormat) -> None:
        """Load what a connection needs, certificates and the modules below httpx; this does not connect."""
        self._config, self._format = config, wire_format
        self._lock = threading.Lock()
        self._http = BoundedClient()
        self._http.prepare(wire_format.url)
        weakref.finalize(self, self._http.client.close)
        self._through_litellm: Provider | None = None

    def abort(self) -> None:
        """See `Provider.abort`."""
        self._http.abort()
        if self._through_litellm is not None:
            self._through_litellm.abort()

    def close(self) -> None:
        """See `Provider.close`."""
        self._http.client.close()
        if self._through_litellm is not None:
            self._through_litellm.close()

    def model_info(self) -> ModelInfo:
        """Return what litellm's list says about the model."""
        return self._format.info

    def ask(self, request: Mapping[str, Any], *, stream: bool) -> Generator[str, None, Answer]:
        """See `Provider.ask`.

        Raises:
            Unfinished: the stream ended early.
            RefusedRequestError: the provider answered with an error.
            ValueError: the answer cannot be read.
            InterruptedStreamError: the stream reported an error.
            httpx.HTTPError: no answer came.
        """
        body = self._format.body(request, stream=stream)
        if body is None:
            return (yield from self._litellm().ask(request, stream=stream))
        client, timeout_s = self._http.client, self._config.timeout_s
        sent = client.build_request(
            "POST",
            self._format.url,
            content=json.dumps(body, ensure_ascii=False).encode(),
            headers={"content-type": "application/json", "accept": "application/json", **self._format.headers()},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
        )
        response = client.send(sent, stream=True)
        try:
            if not response.is_success:
                raise RefusedRequestError(_words(response.read()))
            if stream and not is_json(response):
                pieces = response.iter_raw()
                fields = yield from self._stream(pieces)
                _read_out(response, pieces)
            else:  # some servers never stream, even if a stream is requested
                fields = self._format.answer(load_json(response.read()))
                if stream and (text := content_text(fields["choices"][0]["message"].get("content"))):
                    yield text
        finally:
            response.close()
        return Answer(fields, cost_usd(self._format.entry, fields.get("usage") or {}))

    def _stream(self, pieces: Iterator[bytes]) -> Generator[str, None, dict[str, Any]]:
        answer = StreamedAnswer()
        for chunk in self._format.chunks(_objects(pieces)):
            if text := answer.add(chunk):
                yield text
        if not answer.is_finished:
            attempt = current_attempt()
            is_stream = not ("html" in attempt.content_type or attempt.content_type.startswith("application/json"))
            attempt.refusal = attempt.refusal or (error_mapping.CUT if is_stream else error_mapping.UNREADABLE)
            raise Unfinished
        return answer.to_dict()

    def _litellm(self) -> Provider:
        from ohsandbox.llm.litellm_provider import LiteLLMProvider  # noqa: PLC0415 - slow: loads litellm

        with self._lock:
            self._through_litellm = self._through_litellm or LiteLLMProvider(self._config)
            return self._through_litellm


def direct_provider(config: LLMConfig) -> DirectProvider | None:
    """Return the direct provider of the configured model; None if litellm is needed."""
    if config.model_client == "litellm" or any(os.environ.get(name) for name in _LITELLM_ONLY):
        return None
    first, slash, rest = config.model.partition("/")
    provider = config.custom_llm_provider or (first if slash else "")
    if not provider and config.base_url is None:  # a name without provider, which the list may know
        provider = next((name for name in _FORMATS if model_entry(config.model, name)), "")
    if provider not in _FORMATS:
        return None
    wire_format = _FORMATS[provider](config, rest if slash and first == provider else config.model)
    return None if wire_format is None else DirectProvider(config, wire_format)


def served_models(config: LLMConfig, provider: str) -> list[str] | None:
    """Return the server's own names of the models that it lists; None if it has no readable list.

    The server is the provider's, or that of `base_url`; no model is asked.

    Raises:
        ModelUnavailableError: the server does not answer.
        ModelAuthenticationError: there is no key.
    """
    key = anthropic_key(config)
    if provider not in _FORMATS or any(os.environ.get(name) for name in _LITELLM_ONLY) or config.api_version:
        return None
    if provider == "anthropic" and not key:
        return None
    wire_format = OpenAIFormat(config, "") if provider == "openai" else AnthropicFormat(config, "", key)
    headers, client = wire_format.headers(), BoundedClient().client
    try:
        with client:
            response = client.get(wire_format.models_url, headers=headers, timeout=LIST_TIMEOUT_S)
            body = response.json() if response.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelUnavailableError(f"The models of {wire_format.models_url} cannot be listed: {error}.") from error
    except (ValueError, RecursionError):
        return None
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return None
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)] or None


def _objects(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream up to its end."""
    for data in server_events(pieces):
        if data.strip() == _DONE:
            return
        value = load_json(data)
        if isinstance(value, dict):
            yield value


def _read_out(response: httpx.Response, pieces: Iterator[bytes]) -> None:
    """Read a stream to its end, so that its connection can be used again; cut off one that continues."""

    def read() -> None:
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
            for _ in pieces:
                pass

    rest = threading.Thread(target=read, name="ohsandbox-llm-rest", daemon=True)
    rest.start()
    rest.join(_READ_OUT_S)
    if rest.is_alive():
        with contextlib.suppress(OSError):  # closed already
            socket.socket.shutdown(response.extensions["network_stream"].get_extra_info("socket"), socket.SHUT_RDWR)
        rest.join()


def _words(body: bytes) -> str:
    """Return the provider's explanation of an error."""
    text = body.decode(errors="replace")
    try:
        found = load_json(text)
    except ValueError:
        return text
    error = found.get("error", found) if isinstance(found, dict) else found
    words = error.get("message") if isinstance(error, dict) else error
    code = error.get("code") if isinstance(error, dict) else None
    message = words if isinstance(words, str) and words else text
    return f"{message} ({code})" if isinstance(code, str) and code not in message else message
