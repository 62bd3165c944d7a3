"""Options that reach the sandbox: resource limits, from the flag to the engine's create call."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from annotated_types import Ge
from typer import BadParameter

from ohsandbox.cli.options.shared import ProjectParts, SandboxOptions
from ohsandbox.cli.options.typer_options import command, new_app
from ohsandbox.cli.sandbox.runtime import MAX_IMAGES_NAMED, make_runtime, nearest_images, place_of
from ohsandbox.conversation.environment.conversation_environment import default_runtime
from ohsandbox.errors import UsageError
from ohsandbox.limit_ranges import CPUS, DISK_BYTES, MEMORY_BYTES, PIDS, RESOURCE_LIMITS, LimitRange
from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.docker import DockerRuntime, SandboxLimits
from ohsandbox.runtime.docker.config.container_config import ContainerConfig, create_payload
from ohsandbox.runtime.docker.config.resolve import resolve_config
from ohsandbox.runtime.docker.images.engine_images import ImageFacts
from ohsandbox.runtime.factory import BACKENDS
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.runtime.runtime_settings import CONTAINER_OPTIONS, ContainerOptions, RuntimeSettings
from ohsandbox.runtime.service_options import Service
from ohsandbox.runtime.ssh import SshRuntime
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.docker.config.options import DockerOptions
    from tests.cli.conftest import Invoke


PORTS = {"forward", "expose_host", "any_port"}
"""Opened in a sandbox that runs: it is not made of them."""


def _given(*arguments: str) -> SandboxOptions:
    """The options of a container that a command line gives."""
    app, seen = new_app("test"), []

    def go(where: object) -> int:
        assert isinstance(where, SandboxOptions)
        seen.append(where)
        return 0

    go.__annotations__["where"] = Annotated[SandboxOptions, {"attach", *RESOURCE_LIMITS, *CONTAINER_OPTIONS}]
    command(app)(go)
    app([*arguments], standalone_mode=False)
    return seen[0].checked()


def _host_config(*arguments: str) -> dict[str, Any]:
    """The part of the create call that bounds the container, of a command line."""
    runtime = make_runtime(_given(*arguments))
    assert isinstance(runtime, DockerRuntime)
    limits = runtime._options.limits
    config = ContainerConfig(name="n", image="i", workdir="/", limits=limits, cpus=limits.cpus or 2.0)
    host_config: dict[str, Any] = create_payload(config)["HostConfig"]
    return host_config


def _asked_and_sent(runtime: Runtime) -> tuple[DockerOptions, dict[str, Any]]:
    """What the runtime was asked for, and the create payload that it would send."""
    assert isinstance(runtime, DockerRuntime)
    engine: Any = SimpleNamespace(
        cpu_count=lambda: 2,
        address=SimpleNamespace(is_local=True),
        api=SimpleNamespace(info=lambda: {"Runtimes": {"runsc": {}}}),
    )
    facts = ImageFacts("sha256:0", None, "", [], None, "linux/amd64")
    asked = runtime._options
    return asked, create_payload(resolve_config(asked, facts, engine, name="n", labels={}))


def test_resource_limits_reach_the_create_call() -> None:
    sent = _host_config("--memory", "4g", "--cpus", "1.5", "--pids", "100", "--disk", "10GiB")
    assert (sent["Memory"], sent["MemorySwap"]) == (4 * 1024**3, 4 * 1024**3)
    assert (sent["NanoCpus"], sent["PidsLimit"]) == (1_500_000_000, 100)
    assert sent["StorageOpt"] == {"size": str(10 * 1024**3)}


def test_no_option_of_the_sandbox_is_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    used_before = {"copy_all", "branch", "no_project", "no_setup_cache", "project", "allowed", "no_cache"}
    used_before |= {"no_services"}
    declared = {field.name for field in fields(SandboxOptions)} - used_before - PORTS - {"from_project", "workspaces"}
    assert BACKENDS["docker"].isolated  # what ports need
    supported = {name for backend in BACKENDS.values() for name in backend.options}
    assert declared - {"runtime", "workspace", "host_workdir"} == supported
    assert {limit.field for limit in RESOURCE_LIMITS.values()} <= SandboxLimits.model_fields.keys()
    seen: list[RuntimeSettings] = []
    monkeypatch.setattr("ohsandbox.cli.sandbox.runtime.runtime_from", lambda asked, **_: seen.append(asked))
    make_runtime(SandboxOptions(allowed=("a.example",)))  # which `--allow` is a part of
    assert seen[-1].allow == ("a.example",)
    of_kind: dict[str, Any] = {"network": "open", "git": "rw", "runtime": "cli", "env": ["A=b"], "build": Path("/b")}
    for name in declared - {"allow"}:
        before = SandboxOptions(runtime="cli" if name in {"workspace", "host_workdir"} else None)
        is_switch = getattr(before, name) is False
        make_runtime(before)
        make_runtime(replace(before, **{name: of_kind.get(name, True if is_switch else "given")}))
        assert seen[-1] != seen[-2], name


def test_what_a_project_is_made_of_reaches_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RuntimeSettings] = []
    monkeypatch.setattr("ohsandbox.cli.sandbox.runtime.runtime_from", lambda asked, **_: seen.append(asked))
    parts = ProjectParts(build=Build("/b", target="t"), services=(Service("db", image="a:1"),))
    make_runtime(SandboxOptions(build=Path("/b"), from_project=parts))
    assert (seen[0].build, seen[0].services) == (parts.build, parts.services)


_OPTIONS: dict[str, tuple[Any, Callable[[DockerOptions, dict[str, Any]], object], object]] = {
    "cache": ("mine", lambda asked, sent: (asked.cache, "PIP_CACHE_DIR" in str(sent["Env"])), ("mine", True)),
    "platform": ("linux/arm64", lambda asked, _: asked.platform, "linux/arm64"),
    "gpus": ("2", lambda _, sent: sent["HostConfig"]["DeviceRequests"][0]["Count"], 2),
    "oci_runtime": ("runsc", lambda _, sent: sent["HostConfig"]["Runtime"], "runsc"),
    "hard_links": ("keep", lambda asked, _: asked.hard_links, "keep"),
    "profile": ("strict", lambda _, sent: sent["HostConfig"]["ReadonlyRootfs"], True),
    "accept_unenforced": (True, lambda asked, _: asked.limits.enforced, False),
}
"""By name a value, and where it is to arrive: in the create payload, or for what is not in that in `DockerOptions`."""


@pytest.mark.parametrize("name", CONTAINER_OPTIONS)
def test_an_option_of_a_container_arrives_from_flag_settings_and_conversation(name: str) -> None:
    value, read, expected = _OPTIONS[name]
    settings = Settings(**{name: value})
    flag = f"--{name.replace('_', '-')}"
    runtimes = [
        make_runtime(_given(flag, *([] if value is True else [value])).with_settings(Settings())),
        make_runtime(SandboxOptions().with_settings(settings)),
        default_runtime(settings, conversation_id="c"),
    ]
    for runtime in runtimes:
        assert read(*_asked_and_sent(runtime)) == expected


@pytest.mark.parametrize("name", RESOURCE_LIMITS)
def test_a_limit_of_a_container_arrives_from_flag_settings_and_conversation(name: str) -> None:
    field = RESOURCE_LIMITS[name].field
    least = next(one.ge for one in SandboxLimits.model_fields[field].metadata if isinstance(one, Ge))
    runtimes: list[Runtime] = [make_runtime(_given(f"--{name}", str(least)).with_settings(Settings()))]
    if name in Settings.model_fields:
        settings = Settings(**{name: least})
        runtimes.append(make_runtime(SandboxOptions().with_settings(settings)))
        runtimes.append(default_runtime(settings, conversation_id="c"))
    _, without = _asked_and_sent(make_runtime(SandboxOptions().with_settings(Settings())))
    for runtime in runtimes:
        asked, sent = _asked_and_sent(runtime)
        assert getattr(asked.limits, field) == least
        assert sent != without


def test_a_limit_of_containers_need_not_be_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ContainerOptions.of(SimpleNamespace(pids=99, more=1)) == ContainerOptions(pids=99)
    monkeypatch.setitem(RESOURCE_LIMITS, "keep", LimitRange("enforced", 0, 1))
    assert "keep" not in Settings.model_fields
    assert SandboxOptions(memory=1 << 30).with_settings(Settings(pids=99)).pids == 99


def test_without_options_the_limits_are_those_of_the_runtime() -> None:
    sent = _host_config()
    assert (sent["Memory"], sent["PidsLimit"], "StorageOpt" in sent) == (2 * 1024**3, 512, False)


@pytest.mark.parametrize(("text", "size"), [("64m", 64 << 20), ("0.5G", 512 << 20), ("67108864", 64 << 20)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert _host_config("--memory", text)["Memory"] == size


@pytest.mark.parametrize(
    ("name", "least"),
    [("memory", MEMORY_BYTES.least), ("cpus", CPUS.least), ("pids", PIDS.least), ("disk", DISK_BYTES.least)],
)
def test_a_flag_a_setting_and_the_runtime_have_one_least_value_of_a_limit(name: str, least: float) -> None:
    def accepts(make: Callable[[], object]) -> bool:
        try:
            make()
        except (UsageError, BadParameter):
            return False
        return True

    for value, is_taken in ((least, True), (least - 1 if least > 1 else least / 2, False)):
        assert accepts(lambda given=value: _given(f"--{name}", str(given))) is is_taken  # type: ignore[misc]
        assert accepts(lambda given=value: Settings(**{name: given})) is is_taken  # type: ignore[misc]
        assert accepts(lambda given=value: SandboxLimits(**{RESOURCE_LIMITS[name].field: given})) is is_taken  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--memory", "much"], "Invalid value for '--memory': expected a size of 32m or more, as in 512m or 2g"),
        (["--memory", "2x"], "got '2x'"),
        (["--memory", "1m"], "expected a size of 32m or more, as in 512m or 2g, got '1m'"),
        (["--memory", "9" * 18 + "t"], "expected a size"),
        (["--disk", "1m"], "Invalid value for '--disk': expected a size of 64m or more"),
        (["--cpus", "0"], "expected a number of processors, 0.01 or more, got '0'"),
        (["--cpus", "nan"], "got 'nan'"),
        (["--pids", "3"], "Invalid value '3' for '--pids'"),
        (["--memory", "1g", "--runtime", "cli"], "--memory needs a container. Leave out --memory or --runtime cli."),
        (["--pids", "99", "--attach", "name"], "--attach and --pids exclude each other"),
        (["--network", "none", "--attach", "name"], "--attach and --network exclude each other"),
        (["--allow", "a.example.org", "--attach", "name"], "--attach and --allow exclude each other"),
        (["--allow", "a.example.org", "--network", "none"], "--allow and --network none exclude each other"),
        (["--allow", "a.example.org", "--runtime", "cli"], "--allow needs a container"),
        (["--copy", "--workspace", "/usr/lib", "--workspace", "/usr/bin"], "--copy copies one directory, not 2"),
        (["--cache", ""], "--cache needs a name: 'project', or one of yours"),
        (["--allow", "https://a.example.org"], "Invalid network rule 'https://a.example.org'"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("words", [["exec"], ["run"], ["mcp", "serve"]], ids=" ".join)
def test_a_wrong_limit_is_one_line(invoke: Invoke, words: list[str], arguments: list[str], told: str) -> None:
    task = ["--", "true"] if words == ["exec"] else []
    ended = invoke(*words, *arguments, *(["--model", "m"] if words == ["run"] else []), *task)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert told in ended.err


def test_images_that_are_called_like_the_wanted_one_are_named_first_and_none_of_the_tests() -> None:
    here = [
        "alpine:3",
        "busybox:1",
        "debian:12",
        "golang:1",
        "ohsandbox-dev:latest",
        "ohsandbox-test-mcp:a",
        "python:3.12",
    ]
    named, more = nearest_images("pyhton:3.12", [*here, "postgres:17", "redis:8", "ohsandbox-base:debian"])
    assert (named[0], {*named[1:]}) == ("python:3.12", {"alpine:3", "debian:12", "golang:1", "busybox:1"})
    assert (len(named), more) == (MAX_IMAGES_NAMED, 2)
    assert nearest_images("redid:8", ["debian:12", "redis:8"]) == (["redis:8", "debian:12"], 0)
    assert nearest_images("ohsandbox-test-mpc:a", here[4:6]) == ([], 0)


def test_a_variable_has_a_name_that_a_shell_can_export(invoke: Invoke) -> None:
    ended = invoke("exec", "-e", "1X=b", "true")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "Invalid --env '1X': a name has letters, digits and underscores" in ended.err


def test_a_runtime_without_isolation_is_told_by_the_machine_that_it_runs_on(tmp_path: Path) -> None:
    assert place_of(SshRuntime("build.example", "/srv"), SandboxOptions()) == "The machine build.example, in /srv"
    with CLIRuntime(tmp_path) as runtime:
        assert place_of(runtime, SandboxOptions(runtime="cli")) == f"This host, in {tmp_path}"
        assert BACKENDS["cli"].machine == runtime.machine
    assert all(info.isolated or info.machine for info in BACKENDS.values())
