"""The schema of Harbor's `task.toml`, versions 1.0 to 1.4, with the old names of keys that public tasks use."""

# ruff: noqa: RUF012 - pydantic copies defaults
from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from ohsandbox.evaluation.formats.compose import size_bytes
from ohsandbox.evaluation.formats.problems import Section

NetworkMode = Literal["public", "no-network", "allowlist"]
_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
MIB = 1024**2
_MAX_NAME_BYTES = 255
"""The longest file name in bytes, a limit of file systems."""
_VERSIONS = ("1", "1.0", "1.1", "1.2", "1.3", "1.4")


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _as_table(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


def _transport(value: Any) -> Any:
    return "streamable-http" if value == "http" else value


def _version(value: Any) -> Any:
    if isinstance(value, str) and value not in _VERSIONS:
        raise ValueError(f"{value!r} is not known: expected 1.0 to 1.4")
    return value


Version = Annotated[str | None, BeforeValidator(_version)]
Text = Annotated[str, StringConstraints(min_length=1)]


class HarborNetwork(Section):
    """The network access that is allowed."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_have_a_mode(self) -> HarborNetwork:
        if self.allowed_hosts is not None and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts is only valid with network_mode = 'allowlist'")
        return self


class _HarborAuthor(Section):
    name: str
    email: str | None = None


class _HarborAbout(Section):
    name: str | None = None
    version: str | None = None
    description: str = ""
    authors: list[_HarborAuthor] = []
    keywords: list[str] = []


class _HarborAgent(HarborNetwork):
    """The table [agent], of the task or of a step."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class HarborHealthcheck(Section):
    """The table [environment.healthcheck]."""

    command: str
    interval_sec: float = Field(default=5, gt=0)
    timeout_sec: float = Field(default=30, gt=0)
    start_period_sec: float = Field(default=0, ge=0)
    start_interval_sec: float = Field(default=5, gt=0)
    retries: int = Field(default=3, ge=1)


class _HarborMcpServer(Section):
    name: str
    transport: Annotated[Literal["sse", "streamable-http", "stdio"], BeforeValidator(_transport)] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}


class HarborTaskEnvironment(HarborNetwork):
    """The table [environment], of the task or of its verifier."""

    build_timeout_sec: float = Field(default=600, gt=0)
    docker_image: str | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    env: dict[str, str] = {}
    skills_dir: str | None = None
    workdir: str | None = None
    mcp_servers: list[_HarborMcpServer] = []
    healthcheck: HarborHealthcheck | None = None
    allow_internet: bool | None = None
    memory: str | None = None
    storage: str | None = None

    @model_validator(mode="after")
    def _sizes_agree(self) -> HarborTaskEnvironment:
        for name in ("memory", "storage"):
            text, size_mb = getattr(self, name), getattr(self, f"{name}_mb")
            if text is None:
                continue
            size = size_bytes(text) if text[-1:].isalpha() else None
            if size is None:
                raise ValueError(f"{name} = {text!r}: expected a size such as 2G or 512M")
            if size_mb is not None and size != size_mb * MIB:
                raise ValueError(f"{name} = {text!r} contradicts {name}_mb = {size_mb}: leave one out")
        return self

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes, from either of its two keys."""
        return size_bytes(self.memory) if self.memory else self.memory_mb and self.memory_mb * MIB

    @property
    def storage_bytes(self) -> int | None:
        """The storage limit in bytes, from either of its two keys."""
        return size_bytes(self.storage) if self.storage else self.storage_mb and self.storage_mb * MIB


class HarborCollect(Section):
    """An entry of [[verifier.collect]]."""

    command: str
    service: str = "main"
    timeout_sec: float = Field(default=60, gt=0)
    user: str | int | None = None


class HarborVerifier(HarborNetwork):
    """The table [verifier], of the task or of a step."""

    timeout_sec: float = Field(default=600, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: HarborTaskEnvironment | None = None
    collect: list[HarborCollect] = []

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> HarborVerifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' contradicts [verifier.environment]: leave one out")
        return self


class _HarborSolution(Section):
    env: dict[str, str] = {}


class HarborArtifact(Section):
    """An item of the list artifacts."""

    source: Text
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @field_validator("source")
    @classmethod
    def _is_plain(cls, value: str) -> str:
        if ".." in PurePosixPath(value).parts:
            raise ValueError(f"{value!r} has '..' in it: give a path without")
        return value

    @field_validator("destination")
    @classmethod
    def _stays_below(cls, value: str | None) -> str | None:
        path = PurePosixPath(value or "artifact")
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in str(path):
            raise ValueError(f"{value!r}: expected a relative path without '..'")
        if str(path) == "manifest.json":
            raise ValueError("'manifest.json' is the name of another file: choose another")
        return value or None


class HarborStep(Section):
    """An entry of [[steps]]."""

    name: str
    agent: _HarborAgent = _HarborAgent()
    verifier: HarborVerifier = HarborVerifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: HarborHealthcheck | None = None
    artifacts: list[Annotated[HarborArtifact, BeforeValidator(_as_table)]] = []

    @field_validator("name")
    @classmethod
    def _names_a_directory(cls, value: str) -> str:
        is_bounded = 0 < len(value.encode()) <= _MAX_NAME_BYTES
        if not is_bounded or value.strip(". ") != value or _NOT_IN_NAMES.search(value):
            raise ValueError(f"{value!r}: expected the name of a directory in steps/")
        return value


class HarborFile(Section):
    """The whole file `task.toml`."""

    schema_version: Version = None
    version: Version = None
    source: str | None = None
    artifacts: list[Annotated[HarborArtifact, BeforeValidator(_as_table)]] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    task: _HarborAbout | None = None
    metadata: dict[str, Any] = {}
    agent: _HarborAgent = _HarborAgent()
    verifier: HarborVerifier = HarborVerifier()
    environment: HarborTaskEnvironment = HarborTaskEnvironment()
    solution: _HarborSolution = _HarborSolution()
    steps: list[HarborStep] = []

    @model_validator(mode="after")
    def _step_names_differ(self) -> HarborFile:
        names = [unicodedata.normalize("NFC", step.name).casefold() for step in self.steps]
        if len(set(names)) != len(names):
            raise ValueError("two [[steps]] have the same name")
        return self
