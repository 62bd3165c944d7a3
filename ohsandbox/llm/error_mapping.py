"""Maps a provider's failure to an error and says whether a retry may help: the only place that does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.llm import errors
from ohsandbox.llm.text import one_line

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ohsandbox.errors import ModelError


class ErrorKind(NamedTuple):
    """A kind of failure."""

    error: type[ModelError]
    retryable: bool
    fact: str
    remedy: str


AUTHENTICATION = ErrorKind(
    errors.ModelAuthenticationError,
    retryable=False,
    fact="refused the key",
    remedy="Set `api_key`, or the provider's environment variable.",
)
PERMISSION = ErrorKind(
    errors.ModelAuthenticationError,
    retryable=False,
    fact="refused access",
    remedy="Check that `api_key` may use this `model`, and that `base_url` is right.",
)
PAYMENT = ErrorKind(
    errors.ModelAuthenticationError,
    retryable=False,
    fact="has no credit left for this key",
    remedy="Check the billing of the account behind `api_key`.",
)
NOT_FOUND = ErrorKind(
    errors.ModelNotFoundError,
    retryable=False,
    fact="was not found",
    remedy="Check `model` and `base_url`.",
)
NO_PROVIDER = ErrorKind(
    errors.ModelNotFoundError,
    retryable=False,
    fact="belongs to no known provider",
    remedy="Write `model` as provider/name, or set `custom_llm_provider`.",
)
NOT_INSTALLED = ErrorKind(
    errors.ModelNotFoundError,
    retryable=False,
    fact="needs a package that is not installed",
    remedy="Install it, or take another `model`.",
)
REQUEST = ErrorKind(
    errors.ModelRequestError,
    retryable=False,
    fact="refused the request",
    remedy="Check `model`, and set a parameter it does not take (`temperature`, `reasoning_effort`, ...) to null.",
)
CONTEXT = ErrorKind(
    errors.ContextWindowError,
    retryable=False,
    fact="refused the conversation as too long",
    remedy="Condense it, lower `max_output_tokens`, or take a `model` that reads more.",
)
POLICY = ErrorKind(
    errors.ModelRequestError,
    retryable=False,
    fact="refused the content of the conversation",
    remedy="Reword the request, or take another `model`.",
)
TOOLS = ErrorKind(
    errors.ModelRequestError,
    retryable=False,
    fact="takes no tools",
    remedy="Set `native_tool_calling` to null or false: its tool calls are then written as text.",
)
IMAGES = ErrorKind(
    errors.ModelRequestError,
    retryable=False,
    fact="takes no images",
    remedy="Set `vision` to null or false: it is then told of images in words.",
)
STREAM = ErrorKind(
    errors.ModelRequestError,
    retryable=False,
    fact="does not stream its answers",
    remedy="Set `stream` to false.",
)
RATE_LIMIT = ErrorKind(
    errors.ModelRateLimitedError,
    retryable=True,
    fact="limits the rate of requests",
    remedy="Wait, run fewer conversations at once, or raise the limit of the account behind `api_key`.",
)
SERVER = ErrorKind(
    errors.ModelUnavailableError,
    retryable=True,
    fact="failed at the provider",
    remedy="Try again later, or check `base_url`.",
)
CONNECTION = ErrorKind(
    errors.ModelUnavailableError,
    retryable=True,
    fact="could not be reached",
    remedy="Check `base_url` and the network.",
)
TIMEOUT = ErrorKind(
    errors.ModelUnavailableError,
    retryable=True,
    fact="did not answer in time",
    remedy="Raise `timeout_s`, or check `base_url`.",
)
CUT = ErrorKind(
    errors.ModelUnavailableError,
    retryable=True,
    fact="was cut off in the middle of its answer",
    remedy="Try again later, or check what stands between here and `base_url`.",
)
UNREADABLE = ErrorKind(
    errors.ModelAnswerError,
    retryable=True,
    fact="sent an answer that cannot be read",
    remedy="Check that `base_url` is the API itself (it often ends in /v1) and `custom_llm_provider` its format.",
)
TOO_LARGE = ErrorKind(
    errors.ModelAnswerError,
    retryable=False,
    fact="sent an answer over the limit of 32 MiB (128 MiB as a stream)",
    remedy="Check `base_url`, or lower `max_output_tokens`.",
)
COMPRESSED = ErrorKind(
    errors.ModelAnswerError,
    retryable=False,
    fact="sent an answer in a compression that was not asked for",
    remedy="Check what stands between here and `base_url`.",
)
REDIRECT = ErrorKind(
    errors.ModelAnswerError,
    retryable=False,
    fact="answered with a redirect, which is not followed with a key",
    remedy="Set `base_url` to the address it ends at.",
)
CLIENT = ErrorKind(
    errors.ModelRequestError,
    retryable=False,
    fact="could not be asked",
    remedy="Check the settings of the model; `--debug` shows more.",
)

_BY_STATUS = {
    400: REQUEST,
    401: AUTHENTICATION,
    402: PAYMENT,
    403: PERMISSION,
    404: NOT_FOUND,
    405: NOT_FOUND,
    408: TIMEOUT,
    409: SERVER,
    413: CONTEXT,
    422: REQUEST,
    425: SERVER,
    429: RATE_LIMIT,
}
"""408, 409 and 425 say "again, later" (RFC 9110 15.5.9, 15.5.10; RFC 8470 5.2); other 4xx would repeat themselves."""

_BY_CLASS = {
    "LiteLLMUnknownProvider": NO_PROVIDER,
    "ContextWindowExceededError": CONTEXT,
    "PaymentRequiredError": PAYMENT,
    "ContentPolicyViolationError": POLICY,
    "RejectedRequestError": POLICY,
    "GuardrailRaisedException": POLICY,
    "BlockedPiiEntityError": POLICY,
    "ModifyResponseException": POLICY,
    "SensitiveDataRouteException": POLICY,
    "AuthenticationError": AUTHENTICATION,
    "PermissionDeniedError": PERMISSION,
    "BudgetExceededError": PAYMENT,
    "ModelNotMappedError": NO_PROVIDER,
    "NotFoundError": NOT_FOUND,
    "RateLimitError": RATE_LIMIT,
    "Timeout": TIMEOUT,
    "APITimeoutError": TIMEOUT,
    "TimeoutException": TIMEOUT,
    "TimeoutError": TIMEOUT,
    "APIResponseValidationError": UNREADABLE,
    "JSONDecodeError": UNREADABLE,
    "RemoteProtocolError": CUT,
    "APIConnectionError": CONNECTION,
    "TransportError": CONNECTION,
    "ConnectionError": CONNECTION,
    "MidStreamFallbackError": CUT,
    "ServiceUnavailableError": SERVER,
    "BadGatewayError": SERVER,
    "InternalServerError": SERVER,
    "UnprocessableEntityError": REQUEST,
    "BadRequestError": REQUEST,
    "APIStatusError": SERVER,
    "APIError": SERVER,
    "OpenAIError": SERVER,
    "ImportError": NOT_INSTALLED,
}
"""By the name of the nearest class in the error's ancestry, so that nothing slow is imported to tell."""

_NO_SUCCESS = 300
"""The first status that is none."""
_TOO_LONG = re.compile(
    r"context[ _](?:length|window|size)|maximum context|(?:prompt|input) is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"insufficient_quota|exceeded your current quota|credit balance is too low", re.IGNORECASE)
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
"""Ollama, deepinfra; OpenAI, Groq; OpenRouter (404); vLLM; llama.cpp (500), newer and older; pydantic behind vLLM."""
_NO_IMAGES = re.compile(
    r"does(?: not|n't) support (?:images?\b|vision|multimodal|image_url)"
    r"|\bimage(?:s|_url|[ _]inputs?| content)?[`'\"]? (?:is|are) (?:not |un|only )supported"
    r"|no endpoints found that support image input"
    r"|not a multimodal model"
    r"|at most 0 image"
    r"|unknown variant `image_url`",
    re.IGNORECASE,
)
"""Ollama, Bedrock; OpenAI, llama.cpp; OpenRouter (404); vLLM, older and newer; DeepSeek."""
_NO_STREAM = re.compile(
    r"must be verified to stream"
    r"|does(?: not|n't) support (?:stream\b|streaming|stream_options)"
    r"|\bstream(?:ing|_options)?[`'\"]? (?:is|are) (?:not |un)(?:supported|allowed)"
    r"|(?:unsupported|unknown|unrecognized|invalid) (?:request )?(?:argument|param(?:eter)?|field)s?(?: supplied)?: "
    r"[`'\"]?stream(?:_options)?\b"
    r"|\bstream(?:_options)?\b.{1,60}extra inputs are not permitted",
    re.IGNORECASE | re.DOTALL,
)
"""OpenAI (o3 of an unverified organization, 400); proxies; servers from before `stream_options`; pydantic's."""
_ABOUT_THE_ACCOUNT = frozenset({401, 402, 403, 429})
_CLASS_PREFIXES = re.compile(
    r"^(?:(?:litellm\.)?(?:Timeout )?\w*(?:Error|Exception|Timeout)(?:: | - )|Error code: \d+ - )+"
)
_NOISE = re.compile(r"Traceback \(most| Original exception: | Error_str: ")
"""litellm writes the class before the words of a provider, and its own traceback or a repetition after them."""
_NO_PROVIDER = "LLM Provider NOT provided"
"""What litellm says, in a BadRequestError, of a name whose provider it cannot tell."""


class Failure(NamedTuple):
    """One failed attempt."""

    kind: ErrorKind
    error: ModelError
    """Made, not raised: it has no traceback and no cause, so nothing of the foreign error rides along."""
    retry_after: str | None = None
    """The header as it came."""


def failure(
    kind: ErrorKind,
    *,
    model: str,
    detail: str = "",
    status: int | None = None,
    secrets: AbstractSet[str] = frozenset(),
) -> Failure:
    """The failure of a kind, with its one-line message; detail is quoted in it, status named."""
    quoted = one_line(_NOISE.split(_CLASS_PREFIXES.sub("", detail))[0], secrets)
    facts = ": ".join(fact for fact in (f"status {status}" if (status or 0) >= _NO_SUCCESS else "", quoted) if fact)
    told = f" ({facts})" if facts else ""
    return Failure(kind, kind.error(f"Model {one_line(model, secrets)!r} {kind.fact}{told}. {kind.remedy}"))


def kind_of(error: BaseException, *, status: int | None = None, asked: bool = False) -> ErrorKind:
    """The kind of failure of a foreign error.

    Args:
        error: from litellm, openai, httpx or Python.
        status: the HTTP status that was seen on the wire, which is believed before the error's class: litellm makes
            an error of whatever class a provider's *text* names ("litellm.BudgetExceededError").
        asked: a request is known to have gone out; without a status, no answer came.
    """
    text = str(error)
    names = [cls.__name__ for cls in type(error).__mro__]
    by_class = next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)
    if status is not None and status >= _NO_SUCCESS:
        unfit = None if status in _ABOUT_THE_ACCOUNT else _unfit(text, status)
        return unfit or _refine(_kind_of_status(status), by_class, text)
    if status is not None and by_class in {None, CONNECTION, SERVER}:
        return UNREADABLE  # answered 2xx, and litellm stumbled over the body
    if asked and status is None and by_class in {None, SERVER}:
        return CONNECTION  # litellm makes an InternalServerError of a refused connection
    return _refine(by_class, by_class, text) if by_class else CLIENT


def retry_after_of(error: BaseException) -> str | None:
    """The `Retry-After` header that rides on an error.

    litellm 1.106 keeps the headers in `litellm_response_headers`; those of its `response` are mostly empty.
    """
    holders = (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    )
    found = (holder.get("retry-after") for holder in holders if holder)
    return next((str(value) for value in found if value), None)


def _kind_of_status(status: int) -> ErrorKind:
    if status < 400:  # noqa: PLR2004 - 3xx
        return REDIRECT
    return _BY_STATUS.get(status, SERVER if status >= 500 else REQUEST)  # noqa: PLR2004 - 5xx


def _unfit(text: str, status: int) -> ErrorKind | None:
    """What of the request the model cannot take, whatever the status: servers say it with 400, 404, 405 and 500."""
    if _NO_TOOLS.search(text):
        return TOOLS
    if _NO_STREAM.search(text) and status < 500:  # noqa: PLR2004 - 5xx: a stream that broke
        return STREAM
    return IMAGES if _NO_IMAGES.search(text) else None


def _refine(kind: ErrorKind, by_class: ErrorKind | None, text: str) -> ErrorKind:
    """Tell apart what one status stands for."""
    if kind is RATE_LIMIT and _NO_CREDIT.search(text):
        return PAYMENT
    if kind in {REQUEST, CUT}:  # in the middle of a stream, litellm names every error alike
        if kind is REQUEST and by_class in {CONTEXT, POLICY, NO_PROVIDER}:
            return by_class
        if _NO_PROVIDER in text:
            return NO_PROVIDER
        if _TOO_LONG.search(text):
            return CONTEXT
        if _NO_CREDIT.search(text):
            return PAYMENT
    return kind
