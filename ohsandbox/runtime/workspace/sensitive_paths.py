"""Names of files in a workspace that editors, shells, agents, git and other tools execute or obey by themselves."""

from __future__ import annotations

GUARDED = (
    ".vscode", ".idea", ".fleet", ".zed", ".helix", ".nvim.lua", ".nvimrc", ".exrc", ".vimrc", ".dir-locals.el",
    ".claude", ".mcp.json", ".cursor", ".windsurf", ".gemini", ".codex", ".opencode", ".continue", ".roo", ".kiro",
    "opencode.json", "opencode.jsonc", "crush.json", ".crush.json", ".qwen",
    ".aider.conf.yml", ".devcontainer", ".devcontainer.json", ".envrc", ".husky", ".cargo/config.toml", ".cargo/config",
    ".hg/hgrc", ".jj/repo/config.toml", ".ohsandbox.toml",
)  # fmt: skip
"""Paths at the top of a workspace that are read-only if they exist: editors, agents, direnv, git hooks, cargo (which
editors start) and other version control run their contents once the directory is opened or entered, and few tasks edit
one."""

_REPORTED = (
    ".gitattributes", ".gitmodules", ".lfsconfig", ".github/workflows", ".gitlab-ci.yml", ".circleci",
    ".pre-commit-config.yaml", "lefthook.yml", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "pip.conf",
    ".mise.toml", "mise.toml", ".mise.local.toml", "mise.local.toml", ".autoenv", ".autoenv.zsh",
    ".tool-versions", "flake.nix", "shell.nix",
    "conftest.py", "sitecustomize.py", "usercustomize.py", ".pdbrc", ".gdbinit", ".lldbinit", ".irbrc", ".rprofile",
    "agents.md", "claude.md", "gemini.md", ".cursorrules", ".github/copilot-instructions.md", ".openhands", ".agents",
)  # fmt: skip
"""Paths that are reported when they appear or change: tasks edit them, and test runners, package managers, CI and
agents obey them. Files that a person runs by name (Makefile, package.json, build.rs) are left to `git diff`."""
_SUFFIXES = (".pth", ".code-workspace")

_LAST_OF_GUARDED = frozenset(name.rpartition("/")[2] for name in GUARDED)
_LAST_OF_REPORTED = frozenset(name.rpartition("/")[2] for name in _REPORTED)


_LAST = _LAST_OF_GUARDED | _LAST_OF_REPORTED


def may_matter(path: str) -> bool:
    """Whether one of the other functions may be true of the path: 0.4 us, and false of nearly all."""
    path = path.lower()
    return path.endswith(_SUFFIXES) or not _LAST.isdisjoint(path.split("/"))


def runs_when_opened(path: str) -> bool:
    """Whether an editor, an agent or a prompt runs the path's contents once its directory is opened or entered.

    Case is ignored, as macOS and Windows ignore it.
    """
    return _holds_one(path.lower(), GUARDED, _LAST_OF_GUARDED)


def is_obeyed(path: str) -> bool:
    """Whether a tool or an agent obeys the path's contents once it is started; case is ignored."""
    path = path.lower()
    return path.endswith(_SUFFIXES) or _holds_one(path, _REPORTED, _LAST_OF_REPORTED)


def _holds_one(path: str, listed: tuple[str, ...], last_names: frozenset[str]) -> bool:
    """Whether one of the listed paths is a part of path; most paths have none of the last names of these."""
    if last_names.isdisjoint(path.split("/")):
        return False
    return any(f"/{name}/" in f"/{path}/" for name in listed)
