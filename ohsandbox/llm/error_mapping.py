"""Maps a provider's failure to an error of one line and says whether a retry may help: the only place that does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.llm import errors
from ohsandbox.text import encodable, quoted_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from ohsandbox.errors import ModelError
    from ohsandbox.llm.provider import Attempt


class ErrorKind(NamedTuple):
    """A kind of failure."""

    error: type[ModelError]
    fact: str
    remedy: str
    retryable: bool = False
    max_attempts: int | None = None
    """Limit of attempts, if lower than the configured one."""


_AUTHENTICATION = ErrorKind(
    errors.ModelAuthenticationError, "refused the key", "Set `api_key`, or the provider's environment variable."
)
_NO_LOGIN = ErrorKind(
    errors.ModelAuthenticationError,
    "cannot be asked, since this machine has no credentials for it",
    "Log in as the provider's documentation says, or set its environment variables.",
)
PERMISSION = ErrorKind(
    errors.ModelAuthenticationError,
    "refused access",
    "Check that `api_key` may use this `model`, and that `base_url` is right.",
)
_PAYMENT = ErrorKind(
    errors.ModelAuthenticationError,
    "has no credit left for this key",
    "Check the billing of the account behind `api_key`.",
)
NOT_FOUND = ErrorKind(errors.ModelNotFoundError, "was not found", "Check `model` and `base_url`.")
NO_PROVIDER = ErrorKind(
    errors.ModelNotFoundError,
    "belongs to no known provider",
    "Write `model` as provider/name, or set `custom_llm_provider`.",
)
_NOT_INSTALLED = ErrorKind(
    errors.ModelNotFoundError, "needs a package that is not installed", "Install it, or take another `model`."
)
REQUEST = ErrorKind(
    errors.ModelRequestError,
    "refused the request",
    "Check `model`, and set a parameter it does not take (`temperature`, `reasoning_effort`, ...) to null.",
)
_CONTEXT = ErrorKind(
    errors.ContextWindowError,
    "refused the conversation as too long",
    "Condense it, lower `max_output_tokens`, or take a `model` that reads more.",
)
POLICY = ErrorKind(
    errors.ModelRequestError, "refused the content of the conversation", "Reword the request, or take another `model`."
)
TOOLS = ErrorKind(
    errors.ModelRequestError,
    "takes no tools",
    "Set `native_tool_calling` to null or false: its tool calls are then written as text.",
)
MANY_TOOLS = ErrorKind(
    errors.ModelRequestError,
    "takes fewer tools",
    "Leave some out: by `include` or `exclude` of an MCP server, or by naming the agent's tools.",
)
IMAGES = ErrorKind(
    errors.ModelRequestError, "takes no images", "Set `vision` to null or false: it is then told of images in words."
)
STREAM = ErrorKind(errors.ModelRequestError, "does not stream its answers", "Set `stream` to false.")
RATE_LIMIT = ErrorKind(
    errors.ModelRateLimitedError,
    "limits the rate of requests",
    "Wait, run fewer conversations at once, or raise the limit of the account behind `api_key`.",
    retryable=True,
)
SERVER = ErrorKind(
    errors.ModelUnavailableError, "failed at the provider", "Try again later, or check `base_url`.", retryable=True
)
_CONNECTION = ErrorKind(
    errors.ModelUnavailableError, "could not be reached", "Check `base_url` and the network.", retryable=True
)
REFUSED = ErrorKind(
    errors.ModelUnavailableError,
    "could not be reached, since no server listens there",
    "Start the server, or check `base_url`.",
    retryable=True,
    max_attempts=3,
)
"""An address of this machine refused: only starting the server helps."""
UNRESOLVED = REFUSED._replace(
    fact="could not be reached, since its host has no address",
    remedy="Check `base_url`, the network, and whether HTTPS_PROXY must name a proxy.",
)
CERTIFICATE = ErrorKind(
    errors.ModelUnavailableError,
    "could not be reached, since the certificate is not trusted",
    "Add your company's certificate to this machine's store, or set REQUESTS_CA_BUNDLE to its PEM file.",
)
PROXY_LOGIN = ErrorKind(
    errors.ModelUnavailableError,
    "could not be reached, since your proxy wants a password",
    "Write it into HTTPS_PROXY: http://NAME:PASSWORD@HOST:PORT.",
)
NETWORK_SETTING = ErrorKind(errors.ModelRequestError, "could not be asked", "Correct the variable of the environment.")
TIMEOUT = ErrorKind(
    errors.ModelUnavailableError, "did not answer in time", "Raise `timeout_s`, or check `base_url`.", retryable=True
)
CUT = ErrorKind(
    errors.ModelUnavailableError,
    "was cut off in the middle of its answer",
    "Try again later, or check what stands between here and `base_url`.",
    retryable=True,
)
UNREADABLE = ErrorKind(
    errors.ModelAnswerError,
    "sent an answer that cannot be read",
    "Check that `base_url` is the API itself (it often ends in /v1) and `custom_llm_provider` its format.",
    retryable=True,
)
TOO_LARGE = ErrorKind(
    errors.ModelAnswerError,
    "sent an answer over the limit of 32 MiB or 300,000 values (128 MiB as a stream)",
    "Check `base_url`, or lower `max_output_tokens`.",
)
COMPRESSED = ErrorKind(
    errors.ModelAnswerError,
    "sent an answer in a compression that was not asked for",
    "Check what stands between here and `base_url`.",
)
_REDIRECT = ErrorKind(
    errors.ModelAnswerError,
    "answered with a redirect, which is not followed with a key",
    "Set `base_url` to the address it ends at.",
)
CLIENT = ErrorKind(
    errors.ModelRequestError, "could not be asked", "Check the settings of the model; `--debug` shows more."
)

_WITH_LOCATION = frozenset({_REDIRECT, UNREADABLE, REFUSED, UNRESOLVED, CERTIFICATE, PROXY_LOGIN, NETWORK_SETTING})
"""Kinds whose message quotes the attempt's location, or the beginning of its body."""
_BY_STATUS = {
    400: REQUEST,
    401: _AUTHENTICATION,
    402: _PAYMENT,
    403: PERMISSION,
    404: NOT_FOUND,
    407: PROXY_LOGIN,
    405: NOT_FOUND,
    408: TIMEOUT,
    409: SERVER,
    413: _CONTEXT,
    422: REQUEST,
    425: SERVER,
    429: RATE_LIMIT,
}
"""Statuses. 408, 409 and 425 say "again, later" (RFC 9110 15.5.9, 15.5.10; RFC 8470 5.2); other 4xx would recur."""

_BY_CLASS = {
    name: kind
    for kind, names in {
        NO_PROVIDER: "LiteLLMUnknownProvider ModelNotMappedError",
        _CONTEXT: "ContextWindowExceededError",
        _PAYMENT: "PaymentRequiredError BudgetExceededError",
        POLICY: "ContentPolicyViolationError RejectedRequestError GuardrailRaisedException "
        "BlockedPiiEntityError ModifyResponseException SensitiveDataRouteException",
        _AUTHENTICATION: "AuthenticationError",
        PERMISSION: "PermissionDeniedError",
        NOT_FOUND: "NotFoundError",
        RATE_LIMIT: "RateLimitError",
        TIMEOUT: "Timeout APITimeoutError TimeoutException TimeoutError",
        UNREADABLE: "APIResponseValidationError JSONDecodeError",
        CUT: "RemoteProtocolError MidStreamFallbackError InterruptedStreamError",
        _CONNECTION: "APIConnectionError TransportError ConnectionError",
        SERVER: "ServiceUnavailableError BadGatewayError InternalServerError APIStatusError APIError OpenAIError",
        REQUEST: "UnprocessableEntityError BadRequestError",
        _NOT_INSTALLED: "ImportError",
    }.items()
    for name in names.split()
}
"""Kinds by the name of the nearest class in the error's ancestry, so that nothing slow is imported to compare."""

_NO_SUCCESS, _REFUSED, _SERVER_ERRORS = 300, 400, 500
"""The first status of each kind."""
_TOO_LONG = re.compile(
    r"context[ _](?:length|window|size|limit)|maximum context|(?:prompt|input) is too long|too many (?:input )?tokens"
    r"|input tokens exceed|maximum number of tokens|maximum input length",
    re.IGNORECASE,
)
_AGAINST_POLICY = re.compile(r"content_policy_violation|content management policy|our safety system", re.IGNORECASE)
_NO_CREDIT = re.compile(r"insufficient_quota|exceeded your current quota|credit balance is too low", re.IGNORECASE)
_NO_CREDENTIALS = re.compile(r"default credentials were not found|unable to locate credentials", re.IGNORECASE)
"""Messages of google-auth and botocore, of which litellm makes failed connections: no request was sent."""
_NO_TOOLS = re.compile(
    r"(?:does(?: not|n't)|no connected provider) supports? (?:tools?\b(?![ _]choice)|tool[_-]call|function[ _-]?call)"
    r"|(?:\btools?|\btool[ _](?:use|call(?:s|ing)?)|function[ _]call(?:s|ing)?)[`'\"]? (?:is|are) "
    r"(?:not |un)(?:supported|enabled|available)"
    r"|no endpoints found that support tool use"
    r"|tool choice requires --enable-auto-tool-choice"
    r"|tools param requires --jinja"
    r"|unsupported param(?:eter)?: [`'\"]?tools"
    r"|\btools\b.{1,60}extra inputs are not permitted",
    re.IGNORECASE | re.DOTALL,
)
"""Messages of Ollama, deepinfra; OpenAI, Groq; OpenRouter (404); vLLM; llama.cpp (500), newer and older; pydantic
behind vLLM."""
_MANY_TOOLS = re.compile(r"\btools\b.{1,20}array too long", re.IGNORECASE)
"""Message of OpenAI and Azure (400)."""
_NO_IMAGES = re.compile(
    r"does(?: not|n't) support (?:images?\b|vision|multimodal|image_url)"
    r"|\bimage(?:s|_url|[ _]inputs?| content)?[`'\"]? (?:is|are) (?:not |un|only )supported"
    r"|no endpoints found that support image input"
    r"|not a multimodal model"
    r"|at most 0 image"
    r"|unknown variant `image_url`",
    re.IGNORECASE,
)
"""Messages of Ollama, Bedrock; OpenAI, llama.cpp; OpenRouter (404); vLLM, older and newer; DeepSeek."""
_NO_STREAM = re.compile(
    r"must be verified to stream"
    r"|does(?: not|n't) support (?:stream\b|streaming|stream_options)"
    r"|\bstream(?:ing|_options)?[`'\"]? (?:is|are) (?:not |un)(?:supported|allowed)"
    r"|(?:unsupported|unknown|unrecognized|invalid) (?:request )?(?:argument|param(?:eter)?|field)s?(?: supplied)?: "
    r"[`'\"]?stream(?:_options)?\b"
    r"|\bstream(?:_options)?\b.{1,60}extra inputs are not permitted",
    re.IGNORECASE | re.DOTALL,
)
"""Messages of OpenAI (o3 of an unverified organization, 400); proxies; servers from before `stream_options`;
pydantic."""
_ABOUT_THE_ACCOUNT = frozenset({401, 402, 403, 429})
_CLASS_PREFIXES = re.compile(
    r"^(?:(?:litellm\.)?(?:Timeout )?\w*(?:Error|Exception|Timeout)(?:: | - )|Error code: \d+ - )+"
)
_NOISE = re.compile(r"Traceback \(most| Original exception: | Error_str: ")
"""litellm puts a class name before a provider's message, and its own traceback or a repetition after it."""
_NO_PROVIDER = "LLM Provider NOT provided"
"""litellm's BadRequestError for a name whose provider it cannot tell."""


_QUOTE_LIMIT_CHARS = 300
"""Limit of a provider's words in our messages: enough for the cause, too little for a page of HTML."""
_HIDDEN = "***"
_KEY_LIKE = re.compile(r"\b(?:sk-|xai-|gsk_|AIza)[\w*.-]{8,}|(?<=[Bb]earer )\S+")
"""Providers quote keys, or parts of them, back: `Incorrect API key provided: sk-abc***xyz`."""
_SHORTEST_SECRET = 4
"""Shorter secrets are placeholders for local servers ("x", "EMP"); hiding them would garble the text."""


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets, and without anything that looks like a key."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _HIDDEN)
    return _KEY_LIKE.sub(_HIDDEN, text)


def masked_line(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the beginning of text on one line, without secrets, control and format characters."""
    cut = encodable(text[: 100 * _QUOTE_LIMIT_CHARS])
    return quoted_line(redact(cut, secrets), limit_chars=_QUOTE_LIMIT_CHARS)


class Failure(NamedTuple):
    """One failed attempt."""

    kind: ErrorKind
    error: ModelError
    """Created, but not raised: it has no traceback and no cause, and so nothing of the foreign error."""
    retry_after: str | None = None
    """The unparsed header."""


def failure(
    kind: ErrorKind,
    *,
    model: str,
    detail: str = "",
    status: int | None = None,
    secrets: AbstractSet[str] = frozenset(),
) -> Failure:
    """Create the failure of a kind, with a one-line message that quotes detail and names status."""
    quoted = masked_line(_NOISE.split(_CLASS_PREFIXES.sub("", detail))[0], secrets)
    details = ": ".join(fact for fact in (f"status {status}" if (status or 0) >= _NO_SUCCESS else "", quoted) if fact)
    details_note = f" ({details})" if details else ""
    return Failure(kind, kind.error(f"Model {masked_line(model, secrets)!r} {kind.fact}{details_note}. {kind.remedy}"))


def failure_of(error: Exception, attempt: Attempt, *, model: str, secrets: AbstractSet[str]) -> Failure:
    """Create the failure of an attempt that a foreign error ended.

    Its message quotes the provider, the beginning of an unreadable body, or the address of a redirect or of no server.
    """
    kind = attempt.refusal or kind_of(error, status=attempt.status, asked=attempt.asked)
    detail = "" if attempt.refusal or kind is NO_PROVIDER else str(error)
    if kind in _WITH_LOCATION:
        detail = attempt.head.decode(errors="replace") if kind is UNREADABLE else attempt.location
    failed = failure(kind, model=model, detail=detail, status=attempt.status, secrets=secrets | attempt.secrets)
    return failed._replace(retry_after=attempt.retry_after or _retry_after(error))


def kind_of(error: BaseException, *, status: int | None = None, asked: bool = False) -> ErrorKind:
    """Return the kind of failure of a foreign error.

    Args:
        error: from litellm, openai, httpx or Python.
        status: the HTTP status that was seen on the wire, which overrides the error's class: litellm raises whatever
            class a provider's *text* names ("litellm.BudgetExceededError").
        asked: a request is known to have gone out; without a status, no answer came.
    """
    text = str(error)
    names = [cls.__name__ for cls in type(error).__mro__]
    by_class = next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)
    if status is None and _NO_CREDENTIALS.search(text):
        return _NO_LOGIN
    if status is not None and status >= _NO_SUCCESS:
        unfit = None if status in _ABOUT_THE_ACCOUNT else _refused_feature(text, status)
        other = _REDIRECT if status < _REFUSED else REQUEST if status < _SERVER_ERRORS else SERVER
        return unfit or _refine(_BY_STATUS.get(status, other), by_class, text)
    if status is not None and by_class in {None, _CONNECTION, SERVER}:
        return UNREADABLE  # the status was 2xx, but litellm could not read the body
    if asked and status is None and by_class in {None, SERVER}:
        return _CONNECTION  # litellm reports a refused connection as InternalServerError
    return _refine(by_class, by_class, text) if by_class else CLIENT


def _retry_after(error: BaseException) -> str | None:
    """Return the `Retry-After` header that an error carries.

    litellm 1.106 keeps the headers in `litellm_response_headers`; those of its `response` are mostly empty.
    """
    holders = (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    )
    values = (holder.get("retry-after") for holder in holders if holder)
    return next((str(value) for value in values if value), None)


def _refused_feature(text: str, status: int) -> ErrorKind | None:
    """Tell what in the request the model does not accept; servers say so with status 400, 404, 405 or 500."""
    if _NO_TOOLS.search(text):
        return TOOLS
    if _MANY_TOOLS.search(text):
        return MANY_TOOLS
    if _NO_STREAM.search(text) and status < _SERVER_ERRORS:  # a 5xx is a stream that broke
        return STREAM
    return IMAGES if _NO_IMAGES.search(text) else None


def _refine(kind: ErrorKind, by_class: ErrorKind | None, text: str) -> ErrorKind:
    """Refine a kind whose status has several meanings."""
    if kind is REQUEST and by_class in {_CONTEXT, POLICY, NO_PROVIDER}:
        return by_class
    if kind is REQUEST and _AGAINST_POLICY.search(text):
        return POLICY
    if kind in {REQUEST, CUT}:  # within a stream, litellm uses one class for every error
        if _NO_PROVIDER in text:
            return NO_PROVIDER
        if _TOO_LONG.search(text):
            return _CONTEXT
    return _PAYMENT if kind in {REQUEST, CUT, RATE_LIMIT} and _NO_CREDIT.search(text) else kind
