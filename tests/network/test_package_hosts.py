"""Where package tools download from: of the person's files and the tools' own word, never of a repository's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ohsandbox.network.package_hosts import (
    PackageHost,
    PackageHosts,
    apt_hosts,
    cargo_hosts,
    found_on_this_machine,
    go_hosts,
    npm_hosts,
    pip_hosts,
    uv_hosts,
)
from ohsandbox.network.policy import NetworkPolicy


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a person with an empty home and no tools."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "XDG_"))}
    (tmp_path / "bin").mkdir()
    return {**kept, "HOME": str(tmp_path), "PATH": str(tmp_path / "bin"), "PIP_CONFIG_FILE": os.devnull}


def tool(environ: dict[str, str], name: str, script: str) -> None:
    path = Path(environ["PATH"]) / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def names(found: object) -> list[str]:
    assert isinstance(found, list)
    return [one.host for one in found]


def test_index_of_pips_configuration_takes_the_place_of_its_default(environ: dict[str, str], tmp_path: Path) -> None:
    default = names(list(pip_hosts(environ)))
    assert len(default) == 2  # the index, and the host of its files
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://user:secret@index.example.org/simple\n"
        "[install]\nfind-links = https://one.example.org/\n  https://two.example.org:8443/x\n  /srv/wheels\n"
    )
    found = list(pip_hosts({**environ, "PIP_CONFIG_FILE": str(file)}))
    assert names(found) == ["index.example.org", "one.example.org", "two.example.org"]
    assert {one.source for one in found} == {str(file)}
    assert found[2].ports == {8443}
    assert "secret" not in repr(found)


def test_extra_index_of_a_variable_stands_beside_pips_default(environ: dict[str, str]) -> None:
    found = list(pip_hosts({**environ, "PIP_EXTRA_INDEX_URL": "https://extra.example.org/simple"}))
    assert names(found)[0] == "extra.example.org"
    assert len(found) == 3
    assert found[0].source == "environment"


def test_pip_that_is_to_use_no_index_has_no_default(environ: dict[str, str]) -> None:
    assert names(list(pip_hosts({**environ, "PIP_NO_INDEX": "true"}))) == []


def test_uv_is_read_from_its_file_its_variables_and_its_own_word(environ: dict[str, str], tmp_path: Path) -> None:
    tool(environ, "uv", "echo 'The index (by default: <https://default.example.org/simple>)'")
    assert names(list(uv_hosts(environ))) == ["default.example.org"]
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text(
        '[[index]]\nurl = "https://own.example.org/simple"\ndefault = true\n[pip]\nextra-index-url = ["https://more.example.org"]'
    )
    variables = {**environ, "UV_INDEX": "mine=https://mine.example.org/simple"}
    assert names(list(uv_hosts(variables))) == ["mine.example.org", "own.example.org", "more.example.org"]


def test_npm_says_its_registries_and_their_scopes(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text("@a:registry=https://a.example.org/\n//b.example.org/:_authToken=secret\n")
    assert names(list(npm_hosts(environ))) == ["a.example.org"]
    tool(
        environ, "npm", """echo '{"registry": "https://r.example.org/", "init-author-url": "https://no.example.org"}'"""
    )
    assert names(list(npm_hosts(environ))) == ["a.example.org", "r.example.org"]


def test_apt_is_read_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://comment.example.org x main\ndeb cdrom:[x]/ y z\n"
        "deb [arch=amd64] http://one.example.org/debian x main\n"
    )
    (tmp_path / "sources.list.d" / "x.sources").write_text(
        "Types: deb\n# http://comment.example.org\nURIs: http://two.example.org/a\n https://three.example.org\n\n"
        "Enabled: no\nURIs: http://off.example.org\n"
    )
    assert names(list(apt_hosts({}, tmp_path))) == ["one.example.org", "two.example.org", "three.example.org"]


def test_cargo_and_go_are_read_from_their_files(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".cargo").mkdir()
    (tmp_path / ".cargo" / "config.toml").write_text(
        '[registries.mine]\nindex = "sparse+https://c.example.org/"\n[http]\nproxy = "https://no.example.org"'
    )
    assert names(list(cargo_hosts(environ))) == ["c.example.org"]
    variable = {"CARGO_REGISTRIES_OTHER_INDEX": "sparse+https://o.example.org/"}
    assert names(list(cargo_hosts(environ | variable))) == ["o.example.org", "c.example.org"]
    (tmp_path / ".cargo" / "config.toml").write_text("[registries")
    assert names(list(cargo_hosts(environ | variable))) == ["o.example.org"]
    (tmp_path / ".config" / "go").mkdir(parents=True)
    (tmp_path / ".config" / "go" / "env").write_text("GOPROXY=https://g.example.org|direct\nGOSUMDB=sum.example.org\n")
    assert names(list(go_hosts(environ))) == ["g.example.org", "sum.example.org"]
    tool(environ, "go", "printf 'https://said.example.org,direct\\nsum+key https://at.example.org\\n'")
    assert names(list(go_hosts(environ))) == ["said.example.org", "at.example.org"]


def test_repositorys_files_and_programs_say_nothing(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / ".npmrc").write_text("registry=https://evil.example.org/\n")
    (repository / "uv.toml").write_text('index-url = "https://evil.example.org/"')
    (repository / ".cargo").mkdir()
    (repository / ".cargo" / "config.toml").write_text('[registries.x]\nindex = "https://evil.example.org/"')
    monkeypatch.chdir(repository)
    tool(environ, "npm", """pwd >&2; test "$(pwd)" = / && echo '{"registry": "https://outside.example.org/"}'""")
    found = [*npm_hosts(environ), *uv_hosts(environ), *cargo_hosts(environ)]
    assert names(found) == ["outside.example.org"]

    (repository / "pip.conf").write_text("[global]\nindex-url = https://evil.example.org/\n")
    led = {"CARGO_HOME": ".cargo", "NPM_CONFIG_USERCONFIG": ".npmrc", "UV_CONFIG_FILE": "uv.toml"}
    for where in ("", f"{repository}/"):  # as some have it set in every repository
        set_so = {**environ, **{name: where + file for name, file in led.items()}}
        found = [*npm_hosts(set_so), *uv_hosts(set_so), *cargo_hosts(set_so)]
        assert names(found) == ["outside.example.org"]
    assert "evil.example.org" not in names(list(pip_hosts({**environ, "PIP_CONFIG_FILE": f"{repository}/pip.conf"})))

    inside = {**environ, "PATH": f"{repository}/bin:bin"}
    (repository / "bin").mkdir()
    tool({"PATH": str(repository / "bin")}, "npm", """echo '{"registry": "https://evil.example.org/"}'""")
    assert names(list(npm_hosts(inside))) == []
    monkeypatch.chdir(tmp_path / "bin")
    assert names(list(npm_hosts(inside))) == ["evil.example.org"]  # elsewhere the program is the person's own


def test_program_of_a_virtual_environment_is_not_run(environ: dict[str, str], tmp_path: Path) -> None:
    tool(environ, "npm", """echo '{"registry": "https://r.example.org/"}'""")
    assert names(list(npm_hosts(environ))) == ["r.example.org"]
    (tmp_path / "pyvenv.cfg").touch()
    assert names(list(npm_hosts(environ))) == []


def test_tool_that_fails_or_prints_nonsense_says_nothing(environ: dict[str, str]) -> None:
    for script in ("exit 3", "echo '['", "echo '[1]'", "head -c 100000 /dev/zero", "echo '{\"registry\": 7}'"):
        tool(environ, "npm", script)
        assert names(list(npm_hosts(environ))) == []


def test_tool_that_does_not_end_says_nothing(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.network.package_hosts._TOOL_TIMEOUT_S", 0.1)
    tool(environ, "npm", 'echo \'{"registry": "https://late.example.org/"}\'; exec /bin/sleep 20')
    assert names(list(npm_hosts(environ))) == []


def test_addresses_and_this_machine_are_no_package_hosts(environ: dict[str, str]) -> None:
    for url in ("http://10.0.0.7/simple", "http://localhost:3141/", "http://[::1]/", "file:///srv/x", "https://"):
        assert names(list(uv_hosts({**environ, "UV_DEFAULT_INDEX": url}))) == []


def test_this_machines_tools_are_asked_once_and_in_the_background() -> None:
    asked: list[int] = []

    def find() -> list[PackageHost]:
        asked.append(1)
        return [PackageHost("index.example.org", frozenset({443}), "pip", "pip.conf")]

    hosts = PackageHosts(find)
    policy = NetworkPolicy(["packages"], package_hosts=hosts)
    verdict = policy.decide("index.example.org", 443)
    assert (verdict.allowed, verdict.private, verdict.rule) == (True, True, "packages")
    assert verdict.reason == "is allowed by 'packages': pip has it from pip.conf"
    assert not policy.decide("index.example.org", 80).allowed
    assert policy.ready
    assert NetworkPolicy(["packages"], package_hosts=hosts).decide("index.example.org", 443).allowed
    assert asked == [1]


def test_something_is_found_here() -> None:
    assert {one.tool for one in found_on_this_machine()} >= {"pip"}


def test_a_policy_asks_the_tools_only_when_the_first_request_has_long_been_sent() -> None:
    asked: list[str] = []

    def find() -> list[PackageHost]:
        asked.append("tools")
        return []

    hosts = PackageHosts(find)
    policy = NetworkPolicy(["packages"], package_hosts=hosts)
    assert (asked, policy.ready) == ([], False)
    assert not policy.decide("index.example.org", 443).allowed  # who wants to know earlier has them asked
    assert (asked, policy.ready) == (["tools"], True)
