from __future__ import annotations

import os
from pathlib import Path

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.project.project_file import Project, find_project
from ohsandbox.project.setting_rules import NEVER
from ohsandbox.runtime.build_options import resolved_build
from ohsandbox.runtime.docker.images import build
from ohsandbox.settings import Settings


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "home"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    (root / "a" / "b").mkdir(parents=True)
    return root


def read(repository: Path, text: str) -> Project:
    (repository / ".ohsandbox.toml").write_text(text)
    project = find_project(repository)
    assert project is not None
    return project


# --- where it is looked for --------------------------------------------------------------------------


def test_the_nearest_file_up_to_the_root_of_the_repository_counts(repository: Path) -> None:
    assert find_project(repository / "a" / "b") is None
    (repository.parent / ".ohsandbox.toml").write_text("max_tokens = 1")  # above the repository
    assert find_project(repository / "a" / "b") is None
    (repository / ".ohsandbox.toml").write_text("max_tokens = 2")
    (repository / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")  # nothing of ours in it
    found = find_project(repository / "a" / "b")
    assert found is not None
    assert (found.path, found.root) == (repository / ".ohsandbox.toml", repository)
    (repository / "a" / "pyproject.toml").write_text("[tool.ohsandbox]\nmax_tokens = 3\n")
    nearer = find_project(repository / "a" / "b")
    assert nearer is not None
    assert nearer.values == {"max_tokens": 3}


def test_outside_a_repository_no_directory_above_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / ".ohsandbox.toml").write_text("max_tokens = 1")
    (tmp_path / "below").mkdir()
    assert find_project(tmp_path / "below") is None
    assert find_project(tmp_path) is not None


def test_a_pyproject_that_is_none_of_ours_is_never_an_error(repository: Path) -> None:
    for text in ("not toml", "[tool.other]\nx = 1", "x = " + "[" * 5000):
        (repository / "pyproject.toml").write_text(text)
        assert find_project(repository) is None


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NEVER))
def test_what_decides_where_a_key_goes_or_runs_on_this_machine_is_never_taken(repository: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"key '{name}' is never taken from a project"):
        read(repository, f'{name} = "x"')


@pytest.mark.parametrize("name", ["runtime", "attach", "keep", "host_workdir", "settings"])
def test_what_is_no_setting_is_unknown(repository: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown key '{name}'"):
        read(repository, f'{name} = "cli"')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("imag = 'x'", "Did you mean 'image'?"),
        (
            "qqqq = 'x'",
            "unknown key 'qqqq'. Known are settings (`ohsandbox config list`), and build, ",
        ),
        ("network = 'opn'", "'none', 'allowlist' or 'open'"),
        ("setup = 'one text'", "'setup' is wrong"),
        ("workspace = '/etc'", "'bind' or 'copy'"),
        ("image = 'a'\nbuild = '.'", "exclude each other"),
        (
            "secrets = {A = 'file:~/.ssh/id_rsa'}",
            "or by --secret NAME=file:PATH.",
        ),
        ("secrets = {PATH = 'env:A'}", "cannot be named 'PATH'"),
        ("max_tokens = nan", "max_tokens = nan: expected a finite number"),
        ("max_cost_usd = inf", "max_cost_usd = inf: expected a finite number"),
        ("max_cost_usd = 1e400", "max_cost_usd = inf: expected a finite number"),
        ("x = 1" + "0" * 5000, "line 1: not TOML that is read: an integer has more than 64 bits"),
        ("[env]\nx = 0x" + "f" * 5000, "env.x has 20000 bits: expected an integer of at most 64"),
        ("memory = '1'", "'memory' is wrong"),
        ("memory = 5", "'memory' is wrong: 5. Give a number greater than or equal to 33554432 (32m)."),
        ("devcontainer = 3", "'devcontainer' is wrong. Give "),
        (
            "secrets = {A = 'plain'}",
            "secret 'A' names no variable of yours, as a project's file must. Write env:NAME,",
        ),
        ("secrets = {A = 'keyring:openai'}", "secret 'A' names no variable"),
        ("secrets = {A = 5}", "key 'secrets.A' is wrong. Give a string."),
        ("secrets = 'A'", "key 'secrets' is wrong"),
        ("image = 1979-05-27", "'image' is wrong"),
        ("x = ", "not TOML"),
        ("x = " + "[" * 100_000, "not TOML"),
        ("#" * 300_000, "over 262144 bytes"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_path(repository: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(repository, text)
    assert told in str(caught.value)
    assert ".ohsandbox.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("key", ["instructions", "ca_bundle", "build"])
@pytest.mark.parametrize("named", ["/etc/hosts", "../../../etc/hosts", "~/x", "link", "missing"])
def test_no_file_outside_of_the_project_is_named(repository: Path, key: str, named: str) -> None:
    (repository / "link").symlink_to("/etc")
    with pytest.raises(UsageError, match=f"'{key}' names"):
        read(repository, f"{key} = '{named}'")


def test_a_link_or_a_fifo_in_the_place_of_the_file_is_refused(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("max_tokens = 1")
    (repository / ".ohsandbox.toml").symlink_to(tmp_path / "other.toml")
    with pytest.raises(UsageError, match="symbolic link"):
        find_project(repository)
    (repository / ".ohsandbox.toml").unlink()
    os.mkfifo(repository / ".ohsandbox.toml")
    with pytest.raises(UsageError, match="not a regular file"):
        find_project(repository)


# --- what needs trust --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("network = 'none'", {"network": "open"}),
        ("network = 'allowlist'", {}),
        ("network = 'allowlist'", {"network": "open"}),
        ("allow = []", {}),
        ("allow = ['a.example.org']", {"allow": ["packages", "a.example.org"]}),
        ("network = 'open'", {"network": "open"}),
        ("image = 'node:22'", {"image": "node:22"}),
        ("git = 'ro'", {}),
        ("confirm = 'always'", {"confirm": "risky"}),
        ("confirm = 'risky'", {}),
        ("skill_servers = 'never'", {}),
        ("max_iterations = 10", {}),
        ("max_cost_usd = 1", {}),
        ("max_tokens = 10", {"max_tokens": 11}),
        ("memory = '1g'\ncpus = 1\npids = 100\ndisk = '1g'", {}),
        ("checkpoints = true", {"checkpoints": False}),
    ],
)
def test_what_only_narrows_needs_no_trust(repository: Path, text: str, base: dict[str, object]) -> None:
    assert read(repository, text).needing_trust(Settings.model_validate(base)) == {}


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("network = 'open'", {}),
        ("network = 'allowlist'", {"network": "none"}),
        ("allow = ['packages', 'a.example.org']", {}),
        ("allow = ['packages']", {"allow": []}),
        ("forward = ['8000:80']", {}),
        ("expose_host = [5432]", {"expose_host": [6379]}),
        ("image = 'evil:1'", {}),
        ("build = '.'", {}),
        ("setup = ['true']", {}),
        ("workspace = 'bind'", {}),
        ("workspace = 'copy'", {}),
        ("git = 'rw'", {}),
        ("git = 'guarded'", {"git": "ro"}),
        ("confirm = 'never'", {}),
        ("confirm = 'risky'", {"confirm": "always"}),
        ("confirm = 'medium'", {"confirm": "always"}),
        ("skill_servers = 'allow'", {}),
        ("skill_servers = 'ask'", {"skill_servers": "never"}),
        ("max_iterations = 501", {}),
        ("max_cost_usd = 2", {"max_cost_usd": 1}),
        ("memory = '3g'", {}),
        ("cpus = 8", {}),
        ("pids = 5000", {}),
        ("memory = '2g'", {"memory": "1g"}),
        ("disk = '2g'", {"disk": "1g"}),
        ("checkpoints = false", {}),
        ("stuck_detection = false", {}),
        ("stuck_after = 20", {}),
        ("model = 'openai/o1-pro'", {}),
        ("secrets = {A = 'env:A'}", {}),
        ("instructions = 'text.md'", {}),
        ("ca_bundle = 'text.md'", {}),
        ("tools = {enable_browsing = true}", {}),
        ("output = {max_chars = 1000}", {}),
        ("vision = false", {}),
        ("reasoning_effort = 'high'", {}),
    ],
)
def test_what_widens_needs_trust(repository: Path, text: str, base: dict[str, object]) -> None:
    (repository / "text.md").write_text("x")
    (repository / "Dockerfile").write_text("FROM scratch")
    project = read(repository, text)
    wide = project.needing_trust(Settings.model_validate(base))
    assert list(wide) == [text.partition(" ")[0]]
    assert project.layer(without=wide).values == {}


def test_every_setting_that_is_not_known_to_narrow_needs_trust(repository: Path) -> None:
    """A setting that is added later is not taken from a repository by accident."""
    narrow = {"network", "allow", "git", "confirm", "skill_servers", "checkpoints", "stuck_detection", "hard_links"}
    limits = {"max_iterations", "max_time_s", "max_tokens", "max_cost_usd", "memory", "cpus", "pids", "disk"}
    for name in Settings.model_fields.keys() - NEVER - narrow - limits:
        default = getattr(Settings(), name)
        changed = Settings().model_copy(update={name: object()})
        project = read(repository, "")._replace(values={name: default})
        assert list(project.needing_trust(changed)) == [name]


# --- what is trusted ---------------------------------------------------------------------------------


def test_the_hash_is_of_what_is_said_and_not_of_comments(repository: Path) -> None:
    first = read(repository, "image = 'a'\nnetwork = 'open'").digest()
    assert read(repository, "# a comment\nnetwork = 'open'\nimage = 'a'").digest() == first
    assert read(repository, "image = 'a'").digest() != first
    assert read(repository, "image = 'a'\nnetwork = 'open'\nsetup = ['x']").digest() != first


def test_the_hash_holds_the_contents_of_files_that_are_named(repository: Path) -> None:
    (repository / "text.md").write_text("one")
    first = read(repository, "instructions = 'text.md'").digest()
    (repository / "text.md").write_text("two")
    assert read(repository, "instructions = 'text.md'").digest() != first


def test_the_hash_holds_all_that_a_build_is_sent(repository: Path) -> None:
    image = repository / "image"
    image.mkdir()
    (image / "Dockerfile").write_text("FROM scratch\nCOPY run.sh /\nRUN /run.sh")
    (image / "run.sh").write_text("one")
    first = read(repository, "build = 'image'").digest()
    assert read(repository, "build = 'image'").digest() == first
    (image / "run.sh").write_text("two")
    assert read(repository, "build = 'image'").digest() != first


@pytest.mark.parametrize("start", ["", "[", "image = {", "[tool.ohsandbox.", "'x' . "])
def test_a_key_of_many_parts_is_refused_before_it_costs_hours(repository: Path, start: str) -> None:
    with pytest.raises(UsageError, match="over 64 parts"):
        read(repository, start + ".".join("a" * 100_000) + " = 1\n")
    with pytest.raises(UsageError, match="over 64 parts"):
        read(repository, start + " . ".join(['"a"', "'b'"] * 20_000) + " = 1\n")
    with pytest.raises(UsageError, match="over 64 parts"):
        read(repository, start + ".".join(['"\\""'] * 20_000) + " = 1\n")
    with pytest.raises(UsageError, match="not TOML"):  # and looking for it costs none
        read(repository, start + "a" * 250_000)


def test_a_named_file_that_is_huge_or_no_file_is_refused(repository: Path) -> None:
    (repository / "told").touch()
    os.truncate(repository / "told", 1 << 40)
    with pytest.raises(UsageError, match="over 4194304 bytes"):
        read(repository, 'instructions = "told"')
    (repository / "told").unlink()
    os.mkfifo(repository / "told")
    with pytest.raises(UsageError, match="not a regular file"):
        read(repository, 'instructions = "told"')


@pytest.mark.parametrize("name", ["instructions", "ca_bundle"])
def test_a_named_file_is_used_as_it_was_when_it_was_trusted(repository: Path, name: str) -> None:
    (repository / "text.md").write_text("as trusted")
    project = read(repository, f"{name} = 'text.md'")
    digest = project.digest()
    (repository / "text.md").write_text("written since by what runs in a sandbox")
    used = Path(project.layer(without={}).values[name])
    assert (used.read_text(), used.name, used.stat().st_mode & 0o077) == ("as trusted", "text.md", 0)
    assert not used.is_relative_to(repository)
    assert project.digest() == digest
    assert name not in project.layer(without={name: "not trusted"}).values


def test_a_mount_through_a_link_is_shown_as_where_it_leads_and_asks_again_when_it_leads_elsewhere(
    repository: Path, tmp_path: Path
) -> None:
    """A repository's link must not have a person trust one directory and lend another."""
    for name in ("private", "other"):
        (tmp_path / name).mkdir()
    (repository / "fixtures").symlink_to("../private")
    project = read(repository, 'mounts = ["fixtures:/fixtures"]')
    assert project.needing_trust(Settings())["mounts"] == [f"{tmp_path / 'private'}:/fixtures"]
    digest = project.digest()
    (repository / "fixtures").unlink()
    (repository / "fixtures").symlink_to("../other")
    assert read(repository, 'mounts = ["fixtures:/fixtures"]').digest() != digest


def test_a_build_that_changed_after_it_was_compared_with_what_is_trusted_is_not_made(repository: Path) -> None:
    """What runs in another sandbox of the directory sees it being read, and may write before the builder reads it."""
    (repository / "Dockerfile").write_text("FROM busybox\n")
    read(repository, 'build = "."').digest()
    (repository / "Dockerfile").write_text("FROM busybox\nRUN evil\n")
    with pytest.raises(UsageError, match="changed after it was looked at"):
        build.ensure(None, resolved_build(repository))  # type: ignore[arg-type] # no engine is asked
