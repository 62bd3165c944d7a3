"""`Settings`: `settings.json` in the state directory, below a project's file, environment variables and flags."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, SecretStr, field_validator

from ohsandbox.arguments import ConfigModel, expect_path
from ohsandbox.content import OutputLimits
from ohsandbox.errors import UsageError
from ohsandbox.key_store import is_reference, look_up_key
from ohsandbox.limit_ranges import CPUS, DISK_BYTES, MEMORY_BYTES, PIDS
from ohsandbox.paths import STATE_VARIABLE, check_private, state_dir
from ohsandbox.price import GivenPrice  # noqa: TC001 - pydantic reads it
from ohsandbox.runtime.mount_text import Mount
from ohsandbox.runtime.port_numbers import parse_port_pair
from ohsandbox.runtime.runtime_settings import DEFAULT_IMAGE, NetworkMode
from ohsandbox.secrets import check_name, check_reference
from ohsandbox.settings_file import read_object
from ohsandbox.text import byte_size, nearest
from ohsandbox.tool_flags import ToolFlags

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.llm import LLMConfig

SDK_FILE_NAME = "settings_sdk.json"
"""The name of OpenHands' settings file. Keys that both programs have are read; a warning names its other keys."""

_SDK_DIRECTORY = ".openhands"
_VARIABLE_PREFIX = "OHSANDBOX_"
_WITHOUT_VARIABLE = frozenset({"env", "mcpServers", "mcp", "tools", "output", "secrets", "mounts"})
"""Settings that are objects and so have no environment variable, which holds one value."""

_USER_OF_ADDRESS = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]{0,20}://)[^/@]*@")
_HERE = "Settings(...)"
ByteSize = Annotated[int, BeforeValidator(lambda value: byte_size(value) if isinstance(value, str) else value)]
_Split = BeforeValidator(lambda value: value.replace(",", " ").split() if isinstance(value, str) else value)
Names = Annotated[tuple[str, ...], _Split]
"""A list of names; a variable holds it as one text, separated by commas or blanks."""
Ports = Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], _Split]
"""A list of ports; a variable holds it as one text, separated by commas or blanks."""
_OTHER_VARIABLES = (STATE_VARIABLE, "OHSANDBOX_DEBUG")
_LIKENESS = 0.7
"""Similarity from which a variable is taken for a misspelt setting, compared without the prefix: MODLE is one, and so
is LLM_MODEL; TOKEN, which may be the person's own, is not."""


class SettingsLayer(NamedTuple):
    """Values that take precedence over those of the settings file."""

    values: dict[str, Any]
    where: str
    """Their source, which begins an error's message: "Project file '...'"."""


class Settings(ConfigModel):
    """Every setting, with its default.

    Precedence of `load`: flags, then environment variables, then a project's values, then the file. A project's file is
    never looked for by itself: only commands do that, and ask a person before it widens anything.
    """

    model: str | None = None
    """`provider/model`, as litellm names it."""
    api_key: SecretStr | None = None
    """The key, or where it is: `env:NAME` (a variable), `keyring:NAME` (as `ohsandbox init` puts it), `file:PATH`."""
    base_url: str | None = None
    api_version: str | None = None
    custom_llm_provider: str | None = None
    model_client: Literal["auto", "litellm"] | None = None
    """Which client asks the model: litellm asks every provider through litellm; None and auto ask the most common ones
    directly.
    """
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    reasoning_effort: Literal["low", "medium", "high", "none"] | None = None
    max_output_tokens: int | None = Field(default=None, gt=0)
    top_k: int | None = Field(default=None, gt=0)
    context_tokens: int | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    price: GivenPrice | None = None
    """US dollars for a million tokens of input and of output, as in "3,15"; None is the price of litellm's list."""
    native_tool_calling: bool | None = None
    vision: bool | None = None
    prompt_cache: bool | None = None
    """The prompt cache that the model supports; None finds out (see `LLMConfig`)."""

    image: str = DEFAULT_IMAGE
    network: NetworkMode | None = None
    """The sandbox's network; None is the default of the caller: the allowlist for commands at a terminal, none for
    evaluation and Python.
    """
    allow: Names | None = None
    """The allowlist's entries: a host, `*.host`, `host:port`, or `packages`; None is `packages` for commands."""
    forward: Names | None = None
    """Ports of the sandbox to open at ports of this machine, as `--forward` takes them; if a port is taken here,
    another is used.
    """
    expose_host: Ports | None = None
    """Ports of services on this machine that the sandbox can reach."""
    git: Literal["guarded", "ro", "rw"] = "guarded"
    """Which parts of a workspace are guarded against the sandbox; see `DockerRuntime`."""
    hard_links: Literal["separate", "keep"] | None = None
    """What is done about files of a workspace that have names outside of it; None separates. See `DockerRuntime`."""
    mounts: tuple[str, ...] = ()
    """More files of this machine to bind, each "SOURCE:TARGET[:ro]"; see `DockerRuntime`."""
    instructions: str | None = None
    """A file on the host whose text ends the system prompt."""
    memory: ByteSize | None = Field(default=None, ge=MEMORY_BYTES.least, le=MEMORY_BYTES.most)
    """Bytes, or a text such as "2g"; for this and the next three, None is the default of `SandboxLimits`."""
    cpus: float | None = Field(default=None, ge=CPUS.least, le=CPUS.most, allow_inf_nan=False)
    pids: int | None = Field(default=None, ge=PIDS.least, le=PIDS.most)
    disk: ByteSize | None = Field(default=None, ge=DISK_BYTES.least, le=DISK_BYTES.most)
    accept_unenforced: bool = False
    """Whether an engine or OCI runtime that does not enforce the limits is accepted."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of every command in a sandbox. The engine records them, so do not put secrets in them."""
    user: str | None = None
    """Name or id of the user of every command; None is the image's, or with a workspace the person's."""
    cache: str | None = None
    """Package cache that is kept for later sandboxes: project, none, or a name; None is project in a bound
    workspace.
    """
    platform: str | None = None
    """The platform of the image, such as linux/arm64."""
    gpus: Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)] | None = Field(
        default=None, pattern=r"^(all|[1-9][0-9]{0,2})$"
    )
    """The number of GPUs, or all."""
    oci_runtime: str | None = None
    """An OCI runtime of the engine, such as runsc."""
    profile: Literal["strict", "trusted"] | None = None
    """How strict the sandbox is; see `DockerRuntime`."""
    ca_bundle: str | None = None
    """A PEM file on the host whose certificates the sandbox trusts as well."""
    mcpServers: dict[str, Any] = Field(default_factory=dict)  # noqa: N815 - what other programs call it as well
    """MCP servers by name, as in the files of other programs."""
    mcp: dict[str, Any] = Field(default_factory=dict)
    """The MCP servers as lists: {"stdio_servers": [...], "shttp_servers": [...], "sse_servers": [...]}."""
    tools: ToolFlags = Field(default_factory=ToolFlags)
    """Which tools an agent has if it is given none: {"enable_browsing": true, ...}."""

    output: OutputLimits = Field(default_factory=OutputLimits)
    """How much of a tool's result the model is shown: {"max_chars": 60000, ...}."""

    secrets: dict[str, str] = Field(default_factory=dict)
    """Variables of the agent's commands: {"GH_TOKEN": "env:GH_TOKEN", "KEY": "file:~/key"}. Never a value."""

    max_iterations: int = Field(default=500, gt=0)
    max_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, gt=0)
    max_cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    checkpoints: bool = True
    """Whether the files are saved before each turn's first change and after its last, for undo, fork, diff, apply."""
    stuck_detection: bool = True
    """Whether a model that repeats itself is warned, then stopped."""
    nudge_after: int | None = Field(default=3, ge=2, le=20)
    stuck_after: int = Field(default=4, ge=2, le=20)
    """The numbers of repetitions after which the model is warned, and after which the run ends; see `RunLimits`."""
    confirm: Literal["never", "always", "risky", "medium", "plan"] | None = None
    """Which calls a person must allow; plan refuses what may change something.

    None is never in a container, and risky on this host if a person is present.
    """

    skill_servers: Literal["ask", "allow", "never"] | None = None
    """Whether MCP servers that a repository's skills bring are started; None asks; without an answer they stay off."""

    bell: bool = True
    """Whether a session rings the terminal's bell when a question waits, or a run that the user awaited has ended."""

    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _key_refusal: str = PrivateAttr(default="")
    """The reason why the key is not used: the key and the address that it would be sent to come from two sources. Empty
    otherwise.
    """

    @field_validator("secrets")
    @classmethod
    def _references(cls, secrets: dict[str, str]) -> dict[str, str]:
        return {check_name(name): check_reference(name, reference) for name, reference in secrets.items()}

    @field_validator("allow")
    @classmethod
    def _rules(cls, allow: tuple[str, ...] | None) -> tuple[str, ...] | None:
        from ohsandbox.network.policy import parse_rule  # noqa: PLC0415 - most files name none

        return None if allow is None else tuple(parse_rule(rule).text for rule in allow)

    @field_validator("mounts")
    @classmethod
    def _mounts(cls, mounts: tuple[str, ...]) -> tuple[str, ...]:
        for mount_text in mounts:
            Mount.parse(mount_text)
        return mounts

    @field_validator("forward")
    @classmethod
    def _port_pairs(cls, forward: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if forward is None else tuple(str(parse_port_pair(pair)) for pair in forward)

    @classmethod
    def default_path(cls) -> Path:
        """`settings.json` in the state directory."""
        return state_dir() / "settings.json"

    @classmethod
    def file_in_use(cls) -> Path:
        """Path of the file that `load` without a path reads: the default one, or OpenHands' where that is missing."""
        return _default_file(cls.default_path())

    @classmethod
    def variables(cls) -> dict[str, str]:
        """The environment variable of each setting that has one: `OHSANDBOX_` and its name in capitals.

        Settings that are objects or lists of paths have none: `mcpServers`, `mcp`, `tools`, `output`, `secrets` and
        `mounts`.
        """
        return {name: _VARIABLE_PREFIX + name.upper() for name in cls.model_fields if name not in _WITHOUT_VARIABLE}

    @classmethod
    def load(cls, path: Path | str | None = None, *, project: SettingsLayer | None = None, **flags: Any) -> Self:
        """Load the file's settings, and over them a project's, the environment variables, and flags that are not None.

        Without a path the file is the default one; where that is missing, and OHSANDBOX_HOME is not set,
        `~/.openhands/settings_sdk.json`; where that is missing too, all defaults hold. `warnings` says so, and names a
        variable that is spelled nearly as one of these, and each that stands above another value of the file. An empty
        variable counts as none. The file's `api_key` is not used with a `base_url` of a variable at another server.

        Raises:
            UsageError: the file cannot be read, is not a JSON object, or has an unknown or wrong key; a variable or
                flag has a wrong value; a file that was named is missing; other users may write a default one.
        """
        expect_path("path", path)
        file = cls.file_in_use() if path is None else Path(path)
        if path is None:
            check_private(file)
        values = read_object(file, required=path is not None)
        warnings: list[str] = []
        if file.name == SDK_FILE_NAME:
            values, warnings = _known_of(values, cls, file)
            if path is None:
                warnings.insert(0, _old_place_warning(file, cls.default_path(), has_unknown=bool(warnings)))
        settings = cls._validated(values, where=f"Settings file {str(file)!r}")
        settings._sources = dict.fromkeys(values, f"settings file {str(file)!r}")  # noqa: SLF001 - our own instance
        if project is not None:
            settings = settings.over(project)
        for name, variable in cls.variables().items():
            if value := os.environ.get(variable):
                settings = settings._with({name: value}, where=f"Environment variable {variable}")  # noqa: SLF001 - ours
        higher_names = {name for name, value in flags.items() if value is not None}
        warnings += _overrides(values, file, {k: v for k, v in cls.variables().items() if k not in higher_names})
        settings._key_refusal = _refusal_of_key(values, file, higher_names)  # noqa: SLF001 - our own instance
        settings = settings.with_flags(**flags)
        warnings += _misspelt_variables(cls.variables().values())
        if "api_key" in values and not is_reference(str(values["api_key"])):
            warnings += _mode_warnings(file)
        settings._warnings = tuple(warnings)  # noqa: SLF001 - our own instance
        return settings

    @classmethod
    def of_file(cls, path: Path | None = None) -> Self:
        """Load the file's settings alone, found as `load` finds the file, without environment and flags.

        Raises:
            UsageError: as `load`.
        """
        file = cls.file_in_use() if path is None else path
        values = read_object(file, required=path is not None)
        if file.name == SDK_FILE_NAME:
            values, _ = _known_of(values, cls, file)
        return cls._validated(values, where=f"Settings file {str(file)!r}")

    def over(self, layer: SettingsLayer) -> Self:
        """Return a copy with the layer's values put over it; an object's keys are merged into those of the object.

        Raises:
            UsageError: one is wrong.
        """
        merged = dict(layer.values)
        for name, value in layer.values.items():
            current = getattr(self, name, None)
            current = current.model_dump(exclude_unset=True) if isinstance(current, BaseModel) else current
            if isinstance(value, dict) and isinstance(current, dict):
                merged[name] = current | value
        return self._with(merged, where=layer.where)

    def with_flags(self, **flags: Any) -> Self:
        """A copy with every flag that is not None put over it.

        Raises:
            UsageError: a flag's value is wrong.
        """
        flag_values = {name: value for name, value in flags.items() if value is not None}
        return self._with(flag_values, where="The command line")

    def _with(self, new_values: dict[str, Any], *, where: str) -> Self:
        merged = {name: getattr(self, name) for name in self.model_fields_set} | new_values
        settings = self._validated(merged, where=where)
        settings._sources = self._sources | dict.fromkeys(new_values, where[0].lower() + where[1:])  # noqa: SLF001 - ours
        settings._warnings = self._warnings  # noqa: SLF001 - our own instance
        settings._key_refusal = "" if {"api_key", "base_url"} & new_values.keys() else self._key_refusal  # noqa: SLF001
        return settings

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should be told about the file, one line each."""
        return self._warnings

    @property
    def sources(self) -> dict[str, str]:
        """The source of each value, in words, by setting; a setting that is not listed has its default."""
        return dict(self._sources)

    def resolved_api_key(self) -> str | None:
        """Return the key itself; what `env:NAME`, `keyring:NAME` or `file:PATH` names is looked up now.

        Raises:
            UsageError: it is not there; or the key is the file's, and a variable names another server.
        """
        if self.api_key is None:
            return None
        if self._key_refusal:
            raise UsageError(self._key_refusal)
        key = self.api_key.get_secret_value()
        return look_up_key(key) if is_reference(key) else key

    @property
    def mcp_config(self) -> dict[str, Any] | None:
        """The MCP servers of both settings, unchecked; None where none is named."""
        if not self.mcpServers:
            return self.mcp or None
        inner = self.mcp.get("mcpServers", {})
        return {**self.mcp, "mcpServers": {**(inner if isinstance(inner, dict) else {}), **self.mcpServers}}

    def llm_config(self) -> LLMConfig:
        """Return the settings that concern the model.

        Raises:
            UsageError: no model is named, the key's variable is not set, or a value is beyond what a model takes.
        """
        from ohsandbox.llm import LLMConfig  # noqa: PLC0415 - the model's package is loaded when a model is asked for

        if self.model is None:
            raise UsageError('No model is named. Use --model provider/model, or set "model" in the settings file.')
        keys = type(self).model_fields.keys() & LLMConfig.model_fields.keys() - {"api_key"}
        values = {key: value for key in keys if (value := getattr(self, key)) is not None}
        try:
            return LLMConfig(**values, api_key=self.resolved_api_key())
        except UsageError as error:  # its bounds are narrower
            raise UsageError(str(error).replace("LLMConfig(...)", _HERE, 1)) from None

    @classmethod
    def _validated(cls, values: dict[str, Any], *, where: str) -> Self:
        try:
            return cls(**values)
        except UsageError as error:
            raise UsageError(f"{where}{str(error).removeprefix(_HERE)}") from None


def _default_file(own_file: Path) -> Path:
    """The path of our file; OpenHands' where ours is missing and the state directory is the default one."""
    sdk_file = own_file.parent.parent / _SDK_DIRECTORY / SDK_FILE_NAME
    return sdk_file if not own_file.exists() and not os.environ.get(STATE_VARIABLE) and sdk_file.is_file() else own_file


def _known_of(values: dict[str, Any], settings: type[BaseModel], file: Path) -> tuple[dict[str, Any], list[str]]:
    """The values of keys that are settings of ours too, without nulls; and a warning for each other key."""
    unknown = [key for key in values if key not in settings.model_fields]
    warnings = [f"Settings file {str(file)!r}: ohsandbox has no setting {key!r}; it is not used." for key in unknown]
    return {key: value for key, value in values.items() if key not in unknown and value is not None}, warnings


def _old_place_warning(file: Path, own_file: Path, *, has_unknown: bool) -> str:
    target = shlex.quote(str(own_file))
    move = f"mkdir -p -m 700 {shlex.quote(str(own_file.parent))} && cp -p {shlex.quote(str(file))} {target}"
    remedy = "To move them (then take the keys that are not used out)" if has_unknown else "To move them"
    return f"Settings are read from {str(file)!r}, since {str(own_file)!r} is missing. {remedy}: {move}"


def _misspelt_variables(setting_names: Iterable[str]) -> list[str]:
    """A warning for each environment variable that is spelled nearly as one of ours; their values are not shown."""
    names = [name.removeprefix(_VARIABLE_PREFIX) for name in (*setting_names, *_OTHER_VARIABLES)]
    warnings = []
    for variable in sorted(name for name in os.environ if name.startswith(_VARIABLE_PREFIX)):
        name = variable.removeprefix(_VARIABLE_PREFIX)
        if name.lower() in _WITHOUT_VARIABLE - {"mcp"}:  # which marks processes of ours in a sandbox
            warnings.append(
                f"Environment variable {variable} is not used: write {name.lower()!r} into the settings file."
            )
        elif name not in names and (near := nearest(name, names, likeness=_LIKENESS)):
            warnings.append(f"Environment variable {variable} is not used. Did you mean {_VARIABLE_PREFIX}{near}?")
    return warnings


def _overrides(values: dict[str, Any], file: Path, variables: dict[str, str]) -> list[str]:
    """A warning for each variable that overrides another value of the file; for a key the value is not shown."""
    warnings = []
    for name, variable in variables.items():
        value, file_value = os.environ.get(variable), values.get(name)
        if (
            not value
            or file_value is None
            or value == (str(file_value).lower() if isinstance(file_value, bool) else str(file_value))
        ):
            continue
        equals, instead = (
            (f"={without_user(value)!r}", f" {without_user(str(file_value))!r}") if name != "api_key" else ("", "")
        )
        warnings.append(
            f"Environment variable {variable}{equals} stands above {name!r}{instead} of settings file {str(file)!r}. "
            f"`unset {variable}` for the file's."
        )
    return warnings + _addresses_of_providers(values, file)


def _addresses_of_providers(values: dict[str, Any], file: Path) -> list[str]:
    """A warning for a variable of the model's provider that decides where the file's key is sent."""
    if not values.get("api_key") or values.get("base_url") or os.environ.get(f"{_VARIABLE_PREFIX}BASE_URL"):
        return []
    model = os.environ.get(f"{_VARIABLE_PREFIX}MODEL") or str(values.get("model") or "")
    return [
        f"Environment variable {name}={without_user(value)!r} says where the api_key of settings file {str(file)!r} "
        f"is sent. `unset {name}` for the provider's own server, or set base_url in the file."
        for name, value in addresses_of_provider(model.partition("/")[0] if "/" in model else "openai").items()
    ]


def addresses_of_provider(provider: str) -> dict[str, str]:
    """Return the provider's own variables that set the address of its API, and hence where the key is sent; by name."""
    names = [f"{provider.upper()}_{end}" for end in ("BASE_URL", "API_BASE")]
    return {name: value for name in names if (value := os.environ.get(name))}


def _refusal_of_key(values: dict[str, Any], file: Path, higher_names: set[str]) -> str:
    """The error for using the file's key at a variable's server; empty where both are of one source, or one server."""
    url, variables = os.environ.get(f"{_VARIABLE_PREFIX}BASE_URL"), Settings.variables()
    has_own_key = os.environ.get(variables["api_key"]) or {"api_key", "base_url"} & higher_names
    if (
        not url
        or not values.get("api_key")
        or has_own_key
        or _server(url) == _server(str(values.get("base_url") or ""))
    ):
        return ""
    return (
        f"Environment variable {variables['base_url']}={without_user(url)!r} names another server than settings file "
        f"{str(file)!r}, whose api_key is not sent there. Set {variables['api_key']} too, or "
        f"`unset {variables['base_url']}`."
    )


def _server(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.rpartition("@")[2].lower()


def without_user(value: str) -> str:
    """Return the value without the user name and password that an address may contain."""
    return _USER_OF_ADDRESS.sub(r"\1***@", value)


def _mode_warnings(file: Path) -> list[str]:
    mode = stat.S_IMODE(file.stat().st_mode)
    if not mode & 0o077:
        return []
    warning = (
        f"Settings file {str(file)!r} holds an api_key and other users may read it (mode {mode:04o}). "
        f'Run `chmod 600 {file}`, or write "env:NAME", "keyring:NAME" or "file:PATH" instead of the key.'
    )
    return [warning]
