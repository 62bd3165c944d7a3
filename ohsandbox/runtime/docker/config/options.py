"""The caller's options, validated without an engine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from ohsandbox import host_programs
from ohsandbox.arguments import expect, wrong
from ohsandbox.errors import UsageError
from ohsandbox.private_files import read_regular
from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.build_options import resolved_build as checked_build
from ohsandbox.runtime.docker.config import profiles
from ohsandbox.runtime.docker.config.container_config import (
    TRUST_DIR,
    Hardening,
    SandboxLimits,
)
from ohsandbox.runtime.docker.labels import WORKDIR_LABEL
from ohsandbox.runtime.docker.mounts import bind_mounts, caches, mount_policy
from ohsandbox.runtime.docker.mounts.bind_mounts import asked_mounts, asked_workspaces, copied_directory
from ohsandbox.runtime.docker.mounts.guard_mounts import Git, HardLinks  # noqa: TC001 - pydantic reads annotations at run time
from ohsandbox.runtime.mount_text import WORKSPACE, Mount
from ohsandbox.runtime.port_numbers import MAX_PORT
from ohsandbox.runtime.runtime_settings import DEFAULT_IMAGE, NetworkMode
from ohsandbox.runtime.service_options import Service, check_services

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Profile = Literal["contained", "mapped", "strict", "trusted"]
"""`contained`: files live in the container, apt works. `mapped`: a host directory is bound, and no process has a
capability. The workspace decides between these two in any case; see `Hardening` for the others."""

CA_PATH = f"{TRUST_DIR}/ca.pem"
CA_VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
    "NPM_CONFIG_CAFILE", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "CODEX_CA_CERTIFICATE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NIX_SSL_CERT_FILE",
)  # fmt: skip
"""Variables that point common tools to the CA bundle; the first serves OpenSSL, Go and Ruby."""
CA_FILE_VARIABLES = {"WGETRC": f"{CA_PATH}.wgetrc", "APT_CONFIG": f"{CA_PATH}.apt"}
"""Variables of tools that read the CA bundle's path only from a configuration file."""
_MAX_ENV_VARIABLES = 4096
"""Maximum number of variables: shells take time quadratic in it. The first command took 0.6 s with 4,000 and 2.4 s with
8,000."""
_MAX_ENV_BYTES = 512 * 1024
"""Maximum size of all variables: a quarter of what Linux passes to a program (execve(2)), since arguments need space
too. Half of `ENV_SNAPSHOT_BYTES`."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:localhost|{_LABEL}(?:\.{_LABEL})+|{_LABEL}(?:\.{_LABEL})*:[0-9]{{1,5}})/)?"
    rf"{_PART}(?:/{_PART})*(?::[a-zA-Z0-9_][a-zA-Z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
"""A name [registry[:port]/]path[:tag][@digest], by the grammar of the distribution specification."""
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
_MAX_IMAGE_NAME = 255
_OF_ANY_CONTAINER = frozenset({"attach", "env", "user", "workdir", "keep", "ca_bundle", "conversation", "expose_host"})
"""Options that may be given when a running container is joined; the others need a new container."""
_LABEL_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9_./-]{0,126}[a-zA-Z0-9])?")
"""Names of labels; without `=`, which separates name and value in the engine's filters."""
_MAX_LABEL_VALUE = 1024


_NONE_WHERE_EMPTY = {"credentials", "expose_host", "runtime", "labels", "services", "setup_key"}
"""Arguments for which an empty value means the same as None."""


class DockerOptions(BaseModel):
    """The caller's options; `validated_options` validates them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = DEFAULT_IMAGE
    env: dict[str, str] = {}
    user: str | None = None
    workdir: str | None = None
    workspaces: tuple[Mount, ...] = ()
    """Bound workspaces and their paths in the sandbox; the first is "the workspace"."""
    same_path: bool = False
    """Bind each workspace at the path that it has on this machine."""
    mounts: tuple[Mount, ...] = ()
    copy_of: str | None = None
    """A directory whose files are copied to /workspace at the start; there are no workspaces then."""
    copies_all: bool = False
    git: Git = "guarded"
    hard_links: HardLinks = "separate"
    network: NetworkMode = "none"
    allow: tuple[str, ...] = ()
    """Rules of the allowlist; with the open network, addresses that are reachable in addition to the public ones."""
    credentials: tuple[str, ...] = ()
    """Credentials in the syntax of `network.credentials`: the location of each value, never the value."""
    expose_host: tuple[Annotated[int, Field(strict=True, ge=1, le=MAX_PORT)], ...] = ()
    """Ports of services on this machine that the sandbox can reach from its start."""
    profile: Profile | None = None
    """The profile that the caller named; between `contained` and `mapped` only the writable binds decide."""
    platform: str | None = None
    """os/architecture[/variant] of the image."""
    cache: str | None = None
    """"project", or the name of a cache of package tools."""
    gpus: Annotated[int, Field(ge=1, le=1024)] | Literal["all"] | None = None
    limits: SandboxLimits = SandboxLimits()
    name: str | None = None
    keep: StrictBool = False
    attach: str | None = None
    ca_bundle: str | None = None
    runtime: str = ""
    conversation: str | None = None
    checkpoint: str | None = None
    labels: dict[str, str] = {}
    build: Build | None = None
    """The build of the image; `image` is then the name of the built image."""
    services: tuple[Service, ...] = ()
    """Services, in the order in which they start."""
    setup_key: str | None = None
    """Identifies the inputs of the setup other than image and options; see `setups`."""

    @property
    def hardening(self) -> Hardening | None:
        """The profile if it is `strict` or `trusted`, otherwise None."""
        return self.profile if self.profile in {"strict", "trusted"} else None

    @property
    def bound(self) -> tuple[Mount, ...]:
        """All mounts, the workspaces first."""
        return (*self.workspaces, *self.mounts)

    @property
    def writable(self) -> tuple[str, ...]:
        """Directories of this machine that the sandbox can write to."""
        return tuple(mount.source for mount in self.bound if not mount.read_only)

    @property
    def workspace(self) -> str | None:
        """Path of the first workspace on this machine; None if nothing is bound."""
        return self.workspaces[0].source if self.workspaces else None

    @property
    def ca_environment(self) -> dict[str, str]:
        """The variables that point common tools to the CA bundle; empty without one."""
        return {} if self.ca_bundle is None else dict.fromkeys(CA_VARIABLES, CA_PATH) | CA_FILE_VARIABLES


def from_arguments(
    *,
    image: str | None,
    build: Build | str | os.PathLike[str] | None,
    workspace: object,
    copy: bool | Literal["all"],
    same_path: bool,
    mounts: Sequence[str | Mount],
    user: str | int | None,
    ca_bundle: str | os.PathLike[str] | None,
    **others: object,
) -> DockerOptions:
    """Return validated options from the arguments of a `DockerRuntime`.

    Raises:
        UsageError: as `validated_options`.
    """
    if build is not None and image is not None:
        raise UsageError(f"build= and image={image!r} exclude each other. Leave one out.")
    if not isinstance(copy, bool) and copy != "all":
        raise wrong("copy", copy, "Give True, False or 'all'.")
    expect("same_path", same_path, bool, optional=False)
    workspaces = asked_workspaces(workspace, same_path=same_path)
    copied = copied_directory(workspaces) if copy else None
    empty = {name for name, value in others.items() if name in _NONE_WHERE_EMPTY and not value}
    return validated_options(
        image=image, build=None if build is None else checked_build(build),
        workspaces=[] if copy else workspaces, copy_of=copied, copies_all=copy == "all", same_path=same_path or None,
        mounts=asked_mounts(mounts) or None, user=None if user is None else str(user),
        ca_bundle=None if ca_bundle is None else os.fspath(ca_bundle),
        **{name: None if name in empty else value for name, value in others.items()},
    )  # fmt: skip


def validated_options(**asked: object) -> DockerOptions:
    """Return the options after all validation that needs no engine.

    Raises:
        UsageError: a name, directory, limit or combination is invalid.
    """
    try:
        options = DockerOptions.model_validate({name: value for name, value in asked.items() if value is not None})
    except ValidationError as error:
        from ohsandbox.validation_errors import fault_text  # noqa: PLC0415 - only a wrong value needs it

        first = error.errors()[0]
        name = str(first["loc"][0])
        field = ".".join(str(part) for part in first["loc"][1:])
        why, remedy = ("", text) if (text := fault_text(first)).startswith("Give ") else (text, "")
        why = f"{field}: {why}" if field and why else field or why
        raise wrong(f"DockerRuntime({name}=...)", asked.get(name), remedy, why=why) from error
    _check_names(options)
    options = _with_network(options, asked)
    if options.ca_bundle is not None:
        _check_bundle(options.ca_bundle)
    profiles.check(options)
    caches.check(options.cache)
    if asked.get("git") and not options.writable:
        raise UsageError(f"git={options.git!r} is for a bound directory. Pass workspace=DIR, or leave out git=.")
    if options.attach is not None:
        _check_joined(asked)
    if options.services:
        services = check_services(options.services, network=options.network)
        options = options.model_copy(update={"services": services})
    if options.platform is not None:
        options = options.model_copy(update={"platform": profiles.checked_platform(options.platform)})
    return _with_vetted(options)


def _with_vetted(options: DockerOptions) -> DockerOptions:
    """Return a copy of the options whose paths are checked and resolved on this machine."""
    copy_of = None if options.copy_of is None else mount_policy.check_directory(options.copy_of, copied=True)
    if copy_of is not None:
        host_programs.exclude_workspace(copy_of)
    if not options.bound:
        return options.model_copy(update={"copy_of": copy_of})
    taken = [] if copy_of is None else [WORKSPACE]
    workspaces, bound = bind_mounts.vetted(options.workspaces, options.mounts, taken=taken)
    for mount in (*workspaces, *(mount for mount in bound if not mount.read_only)):
        host_programs.exclude_workspace(mount.source)
    return options.model_copy(update={"copy_of": copy_of, "workspaces": tuple(workspaces), "mounts": tuple(bound)})


def _check_bundle(path: str) -> None:
    bundle = Path(path).expanduser()
    if not bundle.is_file():
        raise UsageError(f"ca_bundle={path!r} is not a file. Name a PEM file.")
    if b"-----BEGIN CERT" not in read_regular(bundle, follow=True):
        raise UsageError(f"ca_bundle={path!r} contains no PEM certificate. Name a PEM file.")


def _check_joined(asked: Mapping[str, object]) -> None:
    """Refuse options that cannot be applied to a running container."""
    barred = next((name for name, value in asked.items() if value and name not in _OF_ANY_CONTAINER), None)
    if asked.get("keep") is False:
        raise UsageError("keep=False: a container that is joined is not ours to remove. Leave out keep=.")
    if barred is not None:
        name = {"copy_of": "copy", "workspaces": "workspace"}.get(barred, barred)
        other = "use `upload`" if name in {"copy", "workspace"} else f"{name}="
        raise UsageError(
            f"{name}= is for a new container, and attach= joins one that has its own. Leave out attach=, or {other}."
        )


def _with_network(options: DockerOptions, asked: Mapping[str, object]) -> DockerOptions:
    """Return the options with rules checked; rules without a network select the allowlist."""
    if options.credentials and asked.get("network") not in {None, "allowlist"}:
        raise UsageError(
            f"credentials= are added by the allowlist's proxy, and network={options.network!r} has none. "
            "Use network='allowlist'."
        )
    if not options.allow:
        return options
    if options.network == "none" and asked.get("network"):
        raise UsageError("allow= needs egress, and network='none' has none. Use network='allowlist'.")
    if options.network == "none":
        options = options.model_copy(update={"network": "allowlist"})
    return options.model_copy(update={"allow": checked_rules(options.network, options.allow)})


def checked_rules(network: NetworkMode, rules: Sequence[str]) -> tuple[str, ...]:
    """Return the rules of an allowlist, or the addresses of an open network, in canonical spelling.

    Raises:
        UsageError: an entry is not a valid rule or address.
    """
    if not rules or network == "none":
        return ()
    if network == "open":
        return _addresses(rules)
    from ohsandbox.network.policy import parse_rule  # noqa: PLC0415 - most sandboxes have no network

    return tuple(dict.fromkeys(parse_rule(rule).text for rule in rules))


def _addresses(rules: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses among the rules; hosts are left out, since public ones are reachable anyway.

    Raises:
        UsageError: an entry is neither a host nor an address.
    """
    from ohsandbox.network.open_addresses import parse_exception  # noqa: PLC0415 - most sandboxes have no network
    from ohsandbox.network.policy import parse_rule  # noqa: PLC0415 - most sandboxes have no network

    addresses: list[str] = []
    for rule in rules:
        try:
            addresses.append(str(parse_exception(rule)))
        except UsageError as error:
            try:
                parse_rule(rule)
            except UsageError:
                raise error from None
    return tuple(dict.fromkeys(addresses))


def _check_image(image: str) -> None:
    if len(image) > _MAX_IMAGE_NAME or not (_IMAGE.fullmatch(image) or _IMAGE_ID.fullmatch(image)):
        shown = image if len(image) <= 60 else image[:59] + "…"  # noqa: PLR2004 - a line's worth
        raise UsageError(
            f"{shown!r} is not an image name. Name one like python:3.12 or ghcr.io/owner/name:tag, in lower case."
        )


def _check_names(asked: DockerOptions) -> None:
    for image in (asked.image, *(service.image for service in asked.services if service.image is not None)):
        _check_image(image)
    for name in (asked.name, asked.attach):
        if name is not None and not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a container name. Use letters, digits, '_', '.' and '-', two to 128 of them."
            )
    for label, value in asked.labels.items():
        _check_label(label, value)
    if asked.workdir is not None and sane_workdir(asked.workdir) is None:
        raise UsageError(f"workdir={asked.workdir!r} is refused. Use an absolute path outside /proc, /sys and /dev.")


def _check_label(name: str, value: str = "") -> None:
    """Refuse a label that uses our prefix, has a name that filters cannot match, or is too large."""
    if name == "ohsandbox" or name.startswith("ohsandbox."):
        raise UsageError(f"Label {name!r} is one of ohsandbox's own. Choose a name that begins otherwise.")
    if not _LABEL_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a label's name. Use letters, digits, '_', '.', '/' and '-'.")
    if len(value) > _MAX_LABEL_VALUE or not value.isprintable():
        raise UsageError(
            f"The value of label {name!r} is refused. Use one printable line of at most {_MAX_LABEL_VALUE} characters."
        )


def sane_workdir(workdir: str | None) -> str | None:
    """Return the path; None if it is relative or leads through /proc, /sys or /dev (CVE-2024-21626)."""
    if not workdir or not workdir.startswith("/") or "\0" in workdir or ".." in workdir.split("/"):
        return None
    parts = [part for part in workdir.split("/") if part not in {"", "."}]
    return None if parts and parts[0] in {"proc", "sys", "dev"} else "/" + "/".join(parts)


def workdir_of(config: dict[str, Any]) -> str:
    """Return the working directory of processes: from our label, else from the container's configuration."""
    labelled = (config.get("Labels") or {}).get(WORKDIR_LABEL)
    return sane_workdir(labelled) or sane_workdir(config.get("WorkingDir")) or "/"


def check_environment(image_env: Sequence[str], env: Mapping[str, str], *, whose: str) -> None:
    """Refuse an environment that is too large for our shells.

    Args:
        image_env: the image's ENV, as entries NAME=VALUE.
        env: variables that are added to it, or replace some.
        whose: the beginning of the message's sentence.

    Raises:
        UsageError: there are more than 4,096 variables, or over 512 KiB of them.
    """
    merged = dict(entry.partition("=")[::2] for entry in image_env) | dict(env)
    size = sum(len(f"{name}={value}".encode(errors="replace")) + 1 for name, value in merged.items())
    if len(merged) > _MAX_ENV_VARIABLES or size > _MAX_ENV_BYTES:
        raise UsageError(
            f"{whose} has {len(merged):,} environment variables of {size:,} bytes. Each program is given all of them, "
            f"so a sandbox takes at most {_MAX_ENV_VARIABLES:,} of {_MAX_ENV_BYTES:,} bytes together. "
            "Put them into a file that the commands read."
        )
