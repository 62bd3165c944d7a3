"""Writes an agent's work as a patch: the difference between the commit it began with and the files it left.

The repository of an agent may hold anything: hooks, filters, a rewritten history, none at all. So git runs in the
sandbox alone, with a directory of its own that borrows nothing of the agent's but objects; see docs/evaluation.md.
"""

from __future__ import annotations

import posixpath
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from ohsandbox.evaluation.sandbox_files import end_of_output
from ohsandbox.evaluation.verifier import NoVerdict

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime import Runtime

MAX_PATCH_BYTES = 200 * 1024**2
_GIT_S = 120.0
"""Time limit of a git command: `git add` of Django's 6,600 files takes 0.4 s."""
_OWN_CONFIGURATION = """
t=$(mktemp -d) || exit 1
trap 'rm -rf "$t"' EXIT
export HOME="$t" GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL="$t/.gitconfig" GIT_ATTR_NOSYSTEM=1 LC_ALL=C
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
printf '[safe]\\n\\tdirectory = *\\n[core]\\n\\thooksPath = /dev/null\\n\\tfsmonitor = false\\n' >"$t/.gitconfig"
printf '\\tcompression = 1\\n\\tlooseCompression = 0\\n' >>"$t/.gitconfig"
"""
"""Git of 2.36 and older heeds safe.directory in files alone, not as `-c`. Of 250 MB of random data it makes objects and
a patch in 4 s with these levels of compression, in 23 s with its own."""
_FIND = (
    """
d=$PWD
while [ ! -e "$d/.git" ]; do
  [ "$d" ] || exit 3
  d=${d%/*}
done
command -v git >/dev/null || exit 3
"""
    + _OWN_CONFIGURATION
    + """
cd "$d/" || exit
commit=$(git rev-parse -q --verify 'HEAD^{commit}') || commit=$(git hash-object -t tree /dev/null) || exit
objects=$(git rev-parse --git-path objects) && objects=$(cd "$objects" && pwd) || exit
printf '%s\\0%s\\0%s\\0%s' "$d/" "$commit" "$objects" "$(stat -c %u:%g .)"
"""
)
"""In a directory: the work tree around it, its commit (or the empty tree), its objects, its owner. 3: there is none."""
_DIFF = (
    _OWN_CONFIGURATION
    + """
top=$1 base=$2 objects=$3
case ${#base} in 64) format=--object-format=sha256 ;; *) format= ;; esac
git init -q --template= $format "$t/own" && printf '%s\\n' "$objects" >"$t/own/.git/objects/info/alternates" || exit
export GIT_DIR="$t/own/.git" GIT_WORK_TREE="$top"
cd "$top" && git read-tree "$base" || exit
git add -A . 2>"$t/said" || { tail -n 3 "$t/said" >&2; exit 1; }
git diff-index --cached -p --binary --full-index -M --no-ext-diff --no-textconv "$base" || exit
! git ls-files -s | grep -q '^160000' || exit 5
"""
)
"""The patch. Attributes hold as in any commit, filters do not: our configuration has none. 5: there are repositories in
the repository, whose files are not part of it."""
_NESTED = 5
_APPLY = (
    _OWN_CONFIGURATION
    + """
cd "$1" && git reset -q --hard "$2" && git clean -ffdq || exit
[ ! -s "$3" ] || git apply --whitespace=nowarn "$3"
"""
)


class Baseline(NamedTuple):
    """The repository around a working directory, as it was before an agent began."""

    top: str
    """The root of its work tree, with a slash at the end."""
    commit: str
    objects: str
    owner: str
    """UID:GID of the owner of the work tree."""


class PatchTooLarge(Exception):  # noqa: N818 - told in a note
    """The patch is larger than MAX_PATCH_BYTES."""


def find_baseline(runtime: Runtime) -> Baseline | None:
    """Return the repository that the working directory is in; None where there is none, or no git in the sandbox."""
    result = runtime.run(["/bin/sh", "-c", _FIND], user="root", timeout_s=_GIT_S)
    fields = result.stdout.decode("utf-8", "surrogateescape").split("\0")
    return Baseline(*fields) if result.exit_code == 0 and len(fields) == len(Baseline._fields) else None


def write_patch(runtime: Runtime, baseline: Baseline, target: Path) -> str | None:
    """Write the difference between the baseline and the files as they are now; return why it is incomplete, or "".

    New files are in it, those that .gitignore names are not. Where it cannot be made, target does not exist.
    """
    try:
        with target.open("wb") as file:
            result = runtime.run(
                ["/bin/sh", "-c", _DIFF, "sh", *baseline[:3]], user="root", workdir="/", timeout_s=_GIT_S,
                on_output=partial(_add, file), limit_bytes=4096,
            )  # fmt: skip
    except PatchTooLarge:
        target.unlink()
        return f"the patch is larger than {MAX_PATCH_BYTES} bytes"
    if result.exit_code == _NESTED:
        return "the patch lacks the files of repositories inside the repository"
    if result.exit_code != 0:
        target.unlink()
        output = end_of_output(result.stderr)
        return f"git could not make a patch: {result.cause or output or f'exit code {result.exit_code}'}"
    return None


def _add(file: BinaryIO, stream: str, data: bytes) -> None:
    if stream == "stdout":
        if file.tell() + len(data) > MAX_PATCH_BYTES:
            raise PatchTooLarge
        file.write(data)


def apply_patch(runtime: Runtime, baseline: Baseline, patch: Path) -> None:
    """Bring the work tree of a fresh sandbox to the baseline's commit and apply the patch.

    Raises:
        NoVerdict: it does not apply.
    """
    name = posixpath.join("/tmp", "ohsandbox-work.diff")  # noqa: S108 - a sandbox in which nobody else is
    runtime.upload(patch, name, user="root")
    result = runtime.run(
        ["/bin/sh", "-c", _APPLY, "sh", baseline.top, baseline.commit, name], user=baseline.owner, workdir="/",
        timeout_s=_GIT_S,
    )  # fmt: skip
    runtime.run(["/bin/sh", "-c", 'rm -f -- "$1"', "sh", name], user="root", workdir="/")
    if result.exit_code != 0:
        output = end_of_output(result.stderr or result.stdout)
        raise NoVerdict(f"the agent's patch cannot be applied: {result.cause or output}")
