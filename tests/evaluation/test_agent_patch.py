"""What an agent changes in a repository arrives in a fresh sandbox, whatever it is; its repository runs nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.evaluation import agent_patch as patches
from ohsandbox.evaluation.agent_patch import apply_patch, find_baseline, write_patch
from ohsandbox.evaluation.verifier import NoVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.docker
IMAGE = "ohsandbox-base:debian"
BASE = r"""
cd /repo && git init -q . && printf 'a\nb\n' >text && head -c 5000 /dev/urandom >binary && ln -s text link
mkdir dir && echo x >dir/x && seq 50 >long && printf '*.o\n' >.gitignore && printf 'one\r\ntwo\r\n' >crlf
printf '*.bat eol=crlf\n' >.gitattributes && printf 'one\r\ntwo\r\n' >dos.bat && echo 1 >-
git add -A && git -c user.email=e -c user.name=n commit -qm base && echo uncommitted >>text && echo new >untracked
"""
NAMES = r"""
printf x >'-n'; printf x >./--help; echo 2 >./-
printf x >"$(printf 'bad\377utf')"; printf x >"$(printf 'a\nb')"; printf x >'"quoted"'
"""
LIST = r"""
cd /repo
find . -path ./.git -prune -o ! -type d -printf '%p %y %l %m ' -exec sha256sum -z {} \; | tr '\0' '\n' | sort
"""
INNER = """
mkdir inner && cd inner && git init -q . && git -c user.email=e -c user.name=n commit -q --allow-empty -m x
echo lost >file
"""


def give_git(runtime: DockerRuntime) -> None:
    """This machine's git, which is one program with few libraries."""
    program = shutil.which("git")
    assert program is not None
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path in (program, *re.findall(r"=> (/\S+)", listed)):
        if b"libc.so" not in path.encode():
            runtime.upload(Path(path).resolve(), f"/usr/{'bin' if path is program else 'lib'}/{Path(path).name}")


@pytest.fixture(scope="module")
def image() -> Iterator[DockerRuntime]:
    """A sandbox with git and a repository, of which each test's sandboxes are forks."""
    with DockerRuntime(IMAGE, workdir="/repo", limits=None) as runtime:
        give_git(runtime)
        made = runtime.run(["/bin/sh", "-c", BASE])
        assert made.exit_code == 0, made.stderr
        yield runtime


@pytest.fixture
def pair(image: DockerRuntime, tmp_path: Path) -> Iterator[tuple[DockerRuntime, DockerRuntime]]:
    """The agent's sandbox and a fresh one."""
    checkpoint = image.checkpoint(owner=tmp_path)
    with (
        DockerRuntime(IMAGE, workdir="/repo", checkpoint=checkpoint.id) as agent,
        DockerRuntime(IMAGE, workdir="/repo", checkpoint=checkpoint.id) as fresh,
    ):
        yield agent, fresh


def files(runtime: DockerRuntime) -> list[str]:
    return runtime.run(["/bin/sh", "-c", LIST]).stdout.decode("utf-8", "replace").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "true",
        "echo more >>text; rm dir/x; git mv long longer; sed -i s/25/x/ longer; chmod +x crlf",
        "head -c 9000 /dev/urandom >binary; head -c 100 /dev/urandom >'a b'; : >empty; ln -sf /etc/passwd link",
        NAMES,
        r"printf 'one\r\nTWO\r\n' >crlf; printf 'one\r\ntwo\r\nthree\r\n' >dos.bat; echo '# more' >>.gitattributes",
        "rm -r dir; ln -s /tmp dir; rm link; mkdir link; echo y >link/y",
        "git add -A; git -c user.email=e -c user.name=n commit -qm mine; git tag v1; rm untracked; echo z >z",
        "git -c user.email=e -c user.name=n commit -q --amend -am rewritten; git reflog expire --expire=now --all",
    ],
    ids=["nothing", "text", "binary", "names", "line ends", "link and directory", "commit", "history"],
)  # fmt: skip
def test_every_change_arrives(pair: tuple[DockerRuntime, DockerRuntime], change: str, tmp_path: Path) -> None:
    agent, fresh = pair
    baseline = find_baseline(agent)
    assert baseline is not None
    assert baseline == find_baseline(fresh)
    changed = agent.run(["/bin/sh", "-c", change])
    assert changed.exit_code == 0, changed.stderr
    assert write_patch(agent, baseline, tmp_path / "patch.diff") is None
    apply_patch(fresh, baseline, tmp_path / "patch.diff")
    assert files(fresh) == files(agent)


HOSTILE = r"""
for hook in pre-commit post-index-change reference-transaction post-checkout; do
  printf '#!/bin/sh\ntouch /tmp/ran\n' >.git/hooks/$hook; chmod +x .git/hooks/$hook
done
git config core.fsmonitor 'touch /tmp/ran #'; git config diff.external 'touch /tmp/ran #'
git config filter.f.clean 'touch /tmp/ran; cat'; git config diff.d.textconv 'touch /tmp/ran #'
git config core.hooksPath .git/hooks; git config core.pager 'touch /tmp/ran'; git config diff.noprefix true
printf '* filter=f diff=d\n' >.gitattributes; printf '* -diff\n' >.git/info/attributes; printf '*\n' >.git/info/exclude
git update-index --assume-unchanged text 2>/dev/null; rm -f /tmp/ran; touch .git/index.lock
echo changed >text; echo added >added
"""


def test_nothing_of_the_agents_repository_is_run_or_heeded(
    pair: tuple[DockerRuntime, DockerRuntime], tmp_path: Path
) -> None:
    agent, fresh = pair
    baseline = find_baseline(agent)
    assert baseline is not None
    assert agent.run(["/bin/sh", "-c", HOSTILE]).exit_code == 0
    before = agent.run(["sh", "-c", "find .git -printf '%p %s\n' | sort"]).stdout
    assert write_patch(agent, baseline, tmp_path / "patch.diff") is None
    assert agent.run(["test", "-e", "/tmp/ran"]).exit_code == 1
    assert agent.run(["sh", "-c", "find .git -printf '%p %s\n' | sort"]).stdout == before
    apply_patch(fresh, baseline, tmp_path / "patch.diff")
    assert files(fresh) == files(agent)


def test_a_patch_that_cannot_be_made_is_told(
    pair: tuple[DockerRuntime, DockerRuntime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, fresh = pair
    baseline = find_baseline(agent)
    assert baseline is not None
    target = tmp_path / "patch.diff"
    agent.run(["/bin/sh", "-c", INNER])
    assert "inside the repository" in str(write_patch(agent, baseline, target))
    agent.run(["sh", "-c", "rm -rf inner; seq 100000 >big"])
    monkeypatch.setattr(patches, "MAX_PATCH_BYTES", 1000)
    assert write_patch(agent, baseline, target) == "the patch is larger than 1000 bytes"
    agent.run(["sh", "-c", "rm -rf .git; git init -q ."])
    assert "could not make a patch" in str(write_patch(agent, baseline, target))
    assert not target.exists()
    target.write_text("nonsense\n")
    with pytest.raises(NoVerdict, match="cannot be applied"):
        apply_patch(fresh, baseline, target)


def test_a_directory_without_a_repository_has_no_baseline() -> None:
    with DockerRuntime(IMAGE) as runtime:
        assert find_baseline(runtime) is None
