"""The options that several commands share, among them the sandbox's.

`typer_options.command` turns the annotated fields into options. Nothing slow is imported: `--help` loads this.
"""

# ruff: noqa: RUF009 - `option` gives a dataclasses.field
from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from ohsandbox.cli.completion import conversation_ids, sandbox_names
from ohsandbox.cli.options.typer_options import (
    byte_size_of,
    check_variables,
    cpu_count,
    directory,
    gpu_count,
    mount_of,
    option,
    path,
    switch,
)
from ohsandbox.errors import UsageError
from ohsandbox.limit_ranges import (
    DEFAULT_CPUS,
    DEFAULT_MEMORY_BYTES,
    DEFAULT_PIDS,
    DISK_BYTES,
    MEMORY_BYTES,
    PIDS,
    RESOURCE_LIMITS,
)

if TYPE_CHECKING:
    from ohsandbox.runtime.build_options import Build
    from ohsandbox.runtime.factory import BackendInfo
    from ohsandbox.runtime.runtime_settings import NetworkMode
    from ohsandbox.runtime.service_options import Service
    from ohsandbox.settings import Settings

# --- options of more than one command ---------------------------------------------------------------

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
NoTui = Annotated[bool, Option("--no-tui", help="Print one plain line per event; no colors, no prompts.")]
SettingsFile = Annotated[
    Path | None,
    Option(parser=path, metavar="FILE", help="Settings file.  [default: ~/.ohsandbox/settings.json]"),
]
McpConfig = Annotated[
    Path | None,
    Option(
        parser=path,
        metavar="FILE",
        help='More MCP servers, beside those of the settings: {"mcpServers": {...}}.',
        rich_help_panel="Tools and prompt",
    ),
]
LAST = "last"
"""Stands for the newest conversation, if none is named."""
ConversationId = Annotated[
    str,
    Argument(
        metavar="ID",
        help="Conversation id, its beginning, or 'last'.  [default: last]",
        autocompletion=conversation_ids,
    ),
]
Root = Annotated[
    Path | None,
    Option(
        "--dir",
        parser=path,
        metavar="DIR",
        help="Directory of the conversations.  [default: ~/.ohsandbox/conversations]",
    ),
]
Yes = Annotated[bool, Option("--yes", "-y", help="Skip the confirmation prompt.")]


# --- the sandbox ------------------------------------------------------------------

_sandbox = partial(option, rich_help_panel="Sandbox")
_sandbox_switch = partial(switch, rich_help_panel="Sandbox")


@dataclass(frozen=True, kw_only=True)
class ProjectCommands:
    """Commands that a project runs in its sandboxes, and their inputs. They are read again when a sandbox resumes."""

    directory: Path | None = None
    """The project's directory."""
    setup: tuple[str, ...] = ()
    """Commands that run once in a new sandbox."""
    inputs: tuple[str, ...] | None = None
    """Files and patterns below directory that the setup commands read; None: see `setup_checkpoints.INPUTS`."""
    start: tuple[str, ...] = ()
    """Commands of a devcontainer that run at each start."""
    folder: str | None = None
    """Directory where a devcontainer's commands expect the workspace."""
    forward: tuple[str, ...] = ()
    """Ports that a devcontainer names, as --forward takes them; a port that is taken here is replaced by another."""


@dataclass(frozen=True, kw_only=True)
class ProjectParts:
    """What a project's sandboxes are made of besides its settings. It is stored for a resumed conversation."""

    build: Build | None = None
    """The whole build, of whose directory `SandboxOptions.build` is the path."""
    services: tuple[Service, ...] = ()
    """Services that run beside the sandbox."""


@dataclass(frozen=True, kw_only=True)
class SandboxOptions:
    """The options of a sandbox as given on the command line; None means the settings' value, or else the default."""

    image: str | None = _sandbox("Container image.  [default: image of the settings, else python:3.12]", "NAME")
    build: Path | None = _sandbox(
        "Build the image from this directory's Dockerfile, with network and outside the sandbox, unless it is built.",
        "DIR",
        parser=path,
    )
    workspaces: list[str] | None = _sandbox(
        "Host directory to work in, bound at /workspace; read-only with :ro. May be repeated: each further one is at "
        "/workspaces/NAME.",
        "DIR[:ro]",
        flags=["--workspace"],
        parser=directory,
    )
    same_path: bool = _sandbox_switch("Bind each --workspace at its own path of this machine.")
    branch: str | None = _sandbox(
        "Work on this branch of the workspace's repository in a tree of its own: see `ohsandbox branches`.", "NAME"
    )
    mount: list[str] | None = _sandbox(
        "Bind one more directory of this machine, or with :ro a file. Diff and undo leave it out, and the report of "
        "changes tells only what git would run there. May be repeated.",
        "SRC:DST[:ro]",
        parser=mount_of,
    )
    copy: bool = _sandbox_switch(
        "Work on a copy of --workspace, without ignored files and secrets. After `run`, `ohsandbox apply` brings the "
        "changes back."
    )
    copy_all: bool = _sandbox_switch("Like --copy, with ignored files and secrets.")
    network: Literal["none", "allowlist", "open"] | None = _sandbox(
        "none: no network. allowlist: only the hosts of --allow and of the settings (default). open: internet access."
    )
    allow: list[str] | None = _sandbox(
        "Host that the sandbox may reach over HTTPS and HTTP, beside those of the settings; implies --network "
        "allowlist. *.HOST: all below it. packages: the package registries of your pip, npm and apt. May be repeated. "
        " [default: packages]",
        "HOST[:PORT]",
    )
    credential: list[str] | None = _sandbox(
        "Key that never enters the sandbox and is added to requests to its host on their way: HOST=env:VARIABLE, with "
        ",header:NAME or ,basic:USER for another form than a bearer token, or a word such as github, gitlab, anthropic "
        "or openai. May be repeated.",
        "HOST=env:NAME",
    )
    git: Literal["guarded", "ro", "rw"] | None = _sandbox(
        "Protection of repositories in --workspace. guarded: commits work; git config, hooks and files that editors "
        "and agents execute are read-only (default). ro: .git is read-only. rw: no protection."
    )
    hard_links: Literal["separate", "keep"] | None = _sandbox(
        "Files in --workspace that are hard-linked to names outside, as by uv and pnpm. separate: each is replaced by "
        "a copy of its own before the start (default). keep: the sandbox changes them under all their names."
    )
    memory: int | None = _sandbox(
        f"Memory limit, swap included, as in 512m or 4g.  [default: {DEFAULT_MEMORY_BYTES >> 30}g]",
        "SIZE",
        parser=byte_size_of(minimum=MEMORY_BYTES.least),
    )
    cpus: float | None = _sandbox(
        f"Number of processors, as in 0.5.  [default: {DEFAULT_CPUS:g}]", "N", parser=cpu_count
    )
    pids: int | None = _sandbox(
        f"Maximum number of processes and threads.  [default: {DEFAULT_PIDS}]", "N", min=PIDS.least, max=PIDS.most
    )
    disk: int | None = _sandbox(
        "Disk limit of the container; needs an engine on xfs with pquota, or btrfs.  [default: none]",
        "SIZE",
        parser=byte_size_of(minimum=DISK_BYTES.least),
    )
    cache: str | None = _sandbox(
        "Keep what pip, uv, npm, apt and cargo download. project: for this workspace, image and user (default where "
        "--workspace is bound). Another NAME: for all sandboxes with it, which must trust each other.",
        "project|NAME",
    )
    no_cache: bool = _sandbox_switch("Start without package caches.")
    env: list[str] | None = _sandbox(
        "Set an environment variable of every command; may be repeated.", "NAME=VALUE", flags=["--env", "-e"]
    )
    user: str | None = _sandbox(
        "User name or uid of every command.  [default: the image's, or with --workspace you]", "NAME"
    )
    platform: str | None = _sandbox("Platform of the image, as in linux/arm64.  [default: the engine's]", "OS/ARCH")
    gpus: str | None = _sandbox(
        "Number of GPUs, or all; the engine needs NVIDIA's Container Toolkit.  [default: none]",
        "N|all",
        parser=gpu_count,
    )
    oci_runtime: str | None = _sandbox(
        "OCI runtime of the engine, such as runsc (gVisor).  [default: the engine's]", "NAME"
    )
    profile: Literal["strict", "trusted"] | None = _sandbox(
        "strict: only the workspace, the home and /tmp can be written, no root, no capability. trusted: sudo and "
        "setuid programs work; not with a bound directory.  [default: between the two]"
    )
    accept_unenforced: bool = _sandbox_switch(
        "Accept an engine or OCI runtime that does not enforce the limits, as gVisor; the agent "
        "and the log are told which."
    )
    forward: list[str] | None = _sandbox(
        "Port of this machine's loopback that leads to one of the sandbox, also without a network. 0 takes a free one. "
        "May be repeated.",
        "[HOST_PORT:]PORT",
    )
    expose_host: list[int] | None = _sandbox(
        "Port of a service of this machine that the sandbox reaches at 127.0.0.1:PORT. May be repeated.",
        "PORT",
        min=1,
        max=65535,
    )
    keep: bool = _sandbox_switch("Keep the container, and its processes, after exit.")
    attach: str | None = _sandbox(
        "Work in a running container, which is kept, instead of a new one.", "NAME", autocompletion=sandbox_names
    )
    runtime: Literal["docker", "cli"] | None = _sandbox(
        "docker: a container (default). cli: THIS HOST, without a container."
    )
    ca_bundle: Path | None = _sandbox(
        "PEM file with additional CA certificates to trust in the sandbox.", "FILE", parser=path
    )
    no_project: bool = _sandbox_switch(
        "Leave out the project's file (.ohsandbox.toml, or [tool.ohsandbox] of pyproject.toml)."
    )
    allowed: tuple[str, ...] | None = None
    """The complete allowlist of a resumed or completed sandbox; flags add to it."""
    no_setup_cache: bool = _sandbox_switch(
        "Run the project's setup commands, also where a checkpoint holds what they did."
    )
    no_services: bool = _sandbox_switch("Start without the project's services.")
    any_port: bool = False
    """True if the forwarded ports come from the settings: if one is taken, another is used."""
    from_project: ProjectParts = ProjectParts()
    project: ProjectCommands = ProjectCommands()
    host_workdir: Path | None = None
    """Working directory of `--runtime cli` without a workspace; None is the current directory."""
    workspace: Path | None = None
    """The first of the workspaces. If only this is replaced, it becomes the only workspace."""

    def __post_init__(self) -> None:
        """Keep workspace and workspaces consistent."""
        from ohsandbox.runtime.mount_text import parse_path  # noqa: PLC0415 - `--help` reads this module

        first = Path(parse_path(self.workspaces[0]).path) if self.workspaces else None
        if self.workspace is None:
            object.__setattr__(self, "workspace", first)
        elif self.workspace != first:
            object.__setattr__(self, "workspaces", [str(self.workspace)])

    def checked(self) -> SandboxOptions:  # noqa: C901 - one check after another
        """Return the same options. One that the backend does not support is refused, never ignored."""
        from ohsandbox.runtime.factory import BACKENDS  # noqa: PLC0415 - `--help` reads this module

        if self.branch is not None:
            return self._on_branch()
        if self.runtime is not None:
            of_some = {name for backend in BACKENDS.values() for name in backend.options - self.backend.options}
            if given := self._given(*of_some, *({"copy_all"} if "copy" in of_some else ())):
                raise UsageError(f"{given[0]} needs a container. Leave out {given[0]} or --runtime {self.runtime}.")
        self._check_network()
        check_variables(self.env or ())
        if self.copies and self.workspace is None:
            raise UsageError("--copy needs a directory to copy. Name one with --workspace.")
        if self.build and self.image:
            raise UsageError("--build and --image exclude each other. Leave one out.")
        if self.attach:
            self._check_joined()
        if self.no_setup_cache and self.no_project:
            raise UsageError("--no-setup-cache is for a project's setup, which --no-project leaves out. Leave one out.")
        if self.git and not self.mount and (self.attach or self.workspace is None):
            raise UsageError("--git needs a directory to protect. Name one with --workspace, or leave out --git.")
        if self.copies and len(self.workspaces or ()) > 1:
            raise UsageError(
                f"--copy copies one directory, not {len(self.workspaces or ())}. Name one with --workspace, and others "
                "with --mount DIR:/PLACE:ro."
            )
        if self.cache == "":
            raise UsageError("--cache needs a name: 'project', or one of yours. --no-cache starts without.")
        if self.git and self.copies and not self.mount:
            raise UsageError("--git protects a bound directory, and --copy binds none. Leave one out.")
        if self.same_path and (self.copies or self.workspace is None):
            raise UsageError("--same-path is for a bound --workspace. Leave --copy out, or name one.")
        return self

    def _on_branch(self) -> SandboxOptions:
        """Return the options with the branch's work tree as workspace; the git objects it borrows can be read.

        Raises:
            UsageError: the repository or the branch name cannot be used.
        """
        from ohsandbox.runtime.workspace.branches import open_branch  # noqa: PLC0415 - `--help` reads this module

        if self.attach or self.copies or self.same_path or not self.backend.isolated:
            raise UsageError(
                "--branch is for a new container, without --attach, --copy and --same-path. Leave those out."
            )
        replace(self, branch=None, workspace=self.workspace or Path.cwd()).checked()  # refused before a tree is made
        assert self.branch is not None  # noqa: S101 - only asked then
        branch = open_branch(self.workspace or Path.cwd(), self.branch)
        borrowed = f"{branch.objects}:{branch.objects}:ro"
        return replace(
            self,
            branch=None,
            workspace=branch.tree,
            workspaces=[str(branch.tree), *(self.workspaces or [])[1:]],
            mount=[*(one for one in self.mount or () if one != borrowed), borrowed],
        ).checked()

    def _check_joined(self) -> None:
        from ohsandbox.runtime.runtime_settings import CONTAINER_OPTIONS, NETWORK_OPTIONS  # noqa: PLC0415 - `--help` reads this module

        of_new = ("image", "build", "same_path", "mount", *NETWORK_OPTIONS, *RESOURCE_LIMITS, *CONTAINER_OPTIONS)
        given = self._given(*of_new, "no_setup_cache") + (["--workspace"] if self.workspaces else [])
        if given:
            raise UsageError(f"--attach and {given[0]} exclude each other: the container has its own. Leave one out.")

    def _check_network(self) -> None:
        from ohsandbox.runtime.port_numbers import parse_port_pair  # noqa: PLC0415 - `--help` reads this module

        if not self.backend.isolated and (given := self._given("forward", "expose_host")):
            raise UsageError(
                f"{given[0]} needs a container: on {self.backend.machine}, programs reach its ports by themselves. "
                "Leave it out."
            )
        here = [parse_port_pair(one).host_port for one in self.forward or ()]
        if twice := [port for port in here if port and here.count(port) > 1]:
            raise UsageError(f"--forward names port {twice[0]} of this machine twice. Give one of them another port.")
        if twice := [port for port in self.expose_host or () if (self.expose_host or []).count(port) > 1]:
            raise UsageError(f"--expose-host names port {twice[0]} twice. Leave one out.")
        if self.allow and self.network == "none":
            raise UsageError("--allow and --network none exclude each other. Leave one out.")
        if self.credential and self.network not in {None, "allowlist"}:
            raise UsageError(f"--credential and --network {self.network} exclude each other. Leave one out.")

    @property
    def backend(self) -> BackendInfo:
        """Capabilities of the backend that `--runtime` names."""
        from ohsandbox.runtime.factory import backend_info  # noqa: PLC0415 - `--help` reads this module

        return backend_info(self.runtime)

    @property
    def copies(self) -> bool:
        """True if the agent works on a copy, and nothing of the host is bound."""
        return self.copy or self.copy_all

    def with_settings(self, settings: Settings) -> SandboxOptions:
        """Fill in the settings' values for options that were not given."""
        from ohsandbox.runtime.runtime_settings import CONTAINER_OPTIONS  # noqa: PLC0415 - `--help` reads this module

        bundle = self.ca_bundle or (Path(settings.ca_bundle) if settings.ca_bundle else None)
        of_new = set() if self.attach else {*RESOURCE_LIMITS, *CONTAINER_OPTIONS}
        names = {*of_new, "user"} & self.backend.options
        # not all are settings
        limits: dict[str, Any] = {name: getattr(self, name) or getattr(settings, name, None) for name in names}
        if "cache" in names:
            limits |= {"cache": self._cache(settings), "no_cache": False}
        if "env" in self.backend.options:
            variables = settings.env | dict(pair.split("=", 1) for pair in self.env or ())
            limits["env"] = [f"{name}={value}" for name, value in variables.items()]
        network = self._network(settings)
        return replace(
            self,
            **limits,
            credential=self.credential if network == "allowlist" else None,
            image=settings.image if self.image is None and self.build is None else self.image,
            network=network,
            allowed=self._allowed(settings),
            **(self._ports_of(settings) if self.backend.isolated else {}),
            git=self.git or settings.git,
            ca_bundle=bundle,
            mount=self._mounts(settings),
        )

    def _mounts(self, settings: Settings) -> list[str] | None:
        """Return the mounts of the settings, overridden by those of the flags."""
        listed = settings.mounts if "mount" in self.backend.options and not self.attach else ()
        return [*dict.fromkeys([*listed, *(self.mount or ())])] or None

    def _ports_of(self, settings: Settings) -> dict[str, Any]:
        """Return the ports of the flags, or else of the settings."""
        return {
            "forward": self.forward or [*(settings.forward or ())] or None,
            "expose_host": self.expose_host or [*(settings.expose_host or ())] or None,
            "any_port": self.any_port or not (self.forward or self.expose_host),
        }

    def _cache(self, settings: Settings) -> str:
        """Return the package cache's scope: the given one, else a bound workspace's unless an option excludes it.

        An agent in a bound workspace can change the project anyway; with a copy, the cache alone would outlive it.
        """
        from ohsandbox.runtime.mount_text import parse_path  # noqa: PLC0415 - `--help` reads this module

        if self.cache and self.no_cache:
            raise UsageError("--cache and --no-cache exclude each other. Leave one out.")
        if self.no_cache or self.cache:
            return self.cache or "none"
        is_bounded = bool((self.profile or settings.profile) == "strict" or self.disk or settings.disk)
        is_bounded = is_bounded or bool(
            self.oci_runtime or settings.oci_runtime
        )  # volumes failed under gVisor 20221219
        is_bound = bool(self.workspaces and not parse_path(self.workspaces[0]).read_only) and not self.copies
        wanted = settings.cache or ("project" if is_bound else "none")
        return "none" if is_bounded or (wanted == "project" and self.workspace is None) else wanted

    def _network(self, settings: Settings) -> NetworkMode:
        """Return the network mode of the flags, else of the settings, else the allowlist."""
        return self.network or ("allowlist" if self.allow or self.credential else settings.network or "allowlist")

    def _allowed(self, settings: Settings) -> tuple[str, ...]:
        """Return the allowlist of the settings or of the resumed sandbox, extended by the flags."""
        from ohsandbox.runtime.runtime_settings import DEFAULT_ALLOW  # noqa: PLC0415 - `--help` reads this module

        network = self._network(settings)
        if self.attach or network == "none" or not self.backend.isolated:
            return ()
        base = self.allowed
        if base is None:
            is_listed = network == "allowlist" and (settings.network != "none" or self.network is not None)
            base = (DEFAULT_ALLOW if settings.allow is None else settings.allow) if is_listed else ()
        return tuple(dict.fromkeys([*base, *(self.allow or ())]))

    def _given(self, *names: str) -> list[str]:
        """Return those of the named options that were given, as flags in declaration order."""
        return [
            f"--{name.replace('_', '-')}"
            for name in (field.name for field in fields(self))
            if name in names and getattr(self, name)
        ]
