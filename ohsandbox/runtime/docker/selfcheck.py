"""Is the sandbox what was asked for? Judged on what the kernel says of the first process in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.runtime.docker.channel import DockerChannel
    from ohsandbox.runtime.docker.plan import Plan

_SECCOMP_FILTER = "2"


def refuse_weaker(channel: DockerChannel, plan: Plan) -> None:
    """Close the first process's channel where its sandbox is not what was asked for.

    Raises:
        SandboxUnavailable: it is weaker than the plan.
    """
    if (wrong := verdict(channel.facts, plan)) is not None:
        channel.close()
        raise SandboxUnavailable(
            f"Sandbox {plan.spec.name!r} is not as strict as asked: {wrong}. Remedy: `ohsandbox doctor`."
        )


def verdict(facts: Mapping[str, str], plan: Plan) -> str | None:
    """The first fact of `CHECK_SCRIPT` that is weaker than the plan; None where all hold.

    gVisor and Kata have their own kernel in between, so a named OCI runtime is only held to the capabilities.
    """
    mask = plan.spec.capability_mask
    wanted = {"CapBnd": mask, "CapEff": mask if facts.get("Uid") == "0" else f"{0:016x}"}
    if not plan.spec.runtime:
        wanted |= {"NoNewPrivs": "1", "Seccomp": _SECCOMP_FILTER}
    numeric = plan.user.split(":")[0]
    if numeric.isdigit():
        wanted["Uid"] = numeric
    for name, value in wanted.items():
        if facts.get(name) != value:
            return f"{name} is {facts.get(name)!r}, not {value!r}"
    return "/var/run/docker.sock is reachable in it" if "socket" in facts else None
