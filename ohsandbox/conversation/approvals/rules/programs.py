"""Rules for single commands: a table of programs and arguments, and functions where targets decide the risk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox.conversation.approvals.rules import Finding, names, quoted
from ohsandbox.conversation.approvals.rules.git import git_findings, subcommand
from ohsandbox.conversation.approvals.rules.known_programs import UNKNOWN, arguments_of
from ohsandbox.conversation.approvals.rules.network import NETWORK, address_findings
from ohsandbox.conversation.approvals.rules.paths import is_home, is_wide, place_findings, secret_findings
from ohsandbox.conversation.approvals.rules.shell_words import COMPUTED
from ohsandbox.conversation.approvals.rules.variables import variable_findings
from ohsandbox.conversation.approvals.rules.words import write_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.conversation.approvals.rules.shell_syntax import SimpleCommand


class Rule(NamedTuple):
    """A finding for any of its programs; if the rule has conditions, only when one of them holds."""

    programs: str
    """Program names without what follows a dot; `git NAME` is a subcommand of git."""
    risk: Literal["MEDIUM", "HIGH"]
    what: str
    """The finding's text: `{name}` is the program, `{command}` the program with its first two operands, quoted."""
    options: str = ""
    """Condition: one of these is an argument; long options may be abbreviated."""
    letters: str = ""
    """Condition: one of these is a short option."""
    words: str = ""
    """Condition: one of these is among the first four operands. Also marks a use of the program that the rules know."""
    text: re.Pattern[str] | None = None
    """Condition: this matches the arguments and the text of stdin, with a NUL before each and after the last."""

    @property
    def is_plain(self) -> bool:
        """Whether the rule has no condition."""
        return not (self.options or self.letters or self.words or self.text)

    def holds(self, command: SimpleCommand) -> bool:
        """Whether the rule applies to the command."""
        return (
            self.is_plain
            or (self.options != "" and command.has(*self.options.split()))
            or not set(self.letters).isdisjoint(command.flags)
            or not names(self.words).isdisjoint(command.operands[:4])
            or (self.text is not None and self.text.search(_text(command)) is not None)
        )

    def finding(self, command: SimpleCommand) -> Finding:
        """Create the rule's finding for the command."""
        words = quoted(" ".join([command.program, *command.operands[:2]]))
        return Finding(self.risk, self.what.format(name=command.program, command=words))


_REMOTE = "Works on another machine, or sends files there."
_RUNS_TEXT = "Runs a text as a command ({name})."
_DOWNLOADS = "Runs a package that it downloads ({name})."
_DISCARDS_WORK = "Throws away work in the repository."
_DISCARDS = "Throws away changes that are not committed."
_INSTALLS = "Installs or removes software."
_PUBLISHES = "Changes what others use or see: {command}."
_CHANGES_DATA = "Changes or deletes data of a database."

# fmt: off
_RULES = (
    Rule("sudo su doas pkexec runuser", "HIGH", "Becomes another user."),
    Rule("mkfs mke2fs wipefs fdisk sfdisk parted shred mkswap blkdiscard", "HIGH",
         "Writes to disks or file systems as a whole."),
    Rule("shutdown reboot halt poweroff", "HIGH", "Stops or restarts the machine."),
    Rule("init", "HIGH", "Stops or restarts the machine.", words="0 6"),
    Rule("ssh ssh-copy-id scp sftp ftp tftp nc ncat netcat socat telnet", "HIGH", _REMOTE),
    Rule("rsync", "HIGH", _REMOTE, text=re.compile(r"\0(?!-)(?:[\w.-]+@)?[\w.-]+:(?!\\)|\0rsync://")),
    Rule("rsync", "MEDIUM", "Deletes at the target what the source has not.", "--delete --remove-source-files"),
    Rule("systemd-run chroot", "HIGH", "Runs a program beyond this shell ({name})."),
    Rule("git credential credential-store credential-cache", "HIGH", "Takes keys out of a store."),
    Rule("gh gcloud az aws", "HIGH", "Takes keys out of a store.",
         words="token print-access-token print-identity-token get-access-token get-session-token get-login-password"),
    Rule("security pass op bw vault doppler secret-tool", "HIGH", "Takes keys out of a store.",
         words="show read get lookup export secrets find-generic-password find-internet-password dump-keychain"),
    Rule("aws gcloud", "HIGH", "Takes keys out of a store.", words="get-secret-value get-parameter access"),
    Rule("openssl", "HIGH", _REMOTE, words="s_client s_server s_time"),
    Rule("redis-cli", "HIGH", "Deletes a database or a table.", text=re.compile(r"\0flush(?:all|db)\0", re.IGNORECASE)),
    Rule("gpg gpg2", "HIGH", "Takes keys out of the keyring.", "--export-secret-keys --export-secret-subkeys"),
    Rule("rustc", "HIGH", "Lets {name} run a program.", text=re.compile(r"\0(?:-C|--codegen)[\0=]?linker=")),
    Rule("curl", "HIGH", "Writes a file that the format names.", text=re.compile(r"%output\{")),
    Rule("cmake", "MEDIUM", "Has cmake read code outside of the workspace.",
         text=re.compile(
             r"\0-D\0?CMAKE_\w*(?:INCLUDE|TOOLCHAIN|MODULE|PREFIX)\w*(?::\w+)?="
             r"(?:/(?!workspace/|usr/|opt/|nix/)|~|\.\.)")),
    Rule("cmake", "HIGH", "Has cmake run a program with arguments, or from outside of the workspace.",
         text=re.compile(
             r"\0-D\0?\w*(?:LAUNCHER|COMMAND|PROGRAM|EMULATOR|CLANG_TIDY|CPPCHECK|COMPILER|LINKER|EXECUTABLE|RANLIB|STRIP"
             r"|_(?:AR|NM|LD|AS))(?::\w+)?=(?:/(?!workspace/|usr/|opt/|nix/)|~|\.\.|[^\0]*[;\s])")),
    Rule("gdb", "HIGH", "Gives {name} a text that it may run.", text=re.compile(
         r"\0--?(?:e?i?ex?|i?ev[\w-]*|(?:early-)?init-e[\w-]*)[\0=](?!(?:r|run|c|continue|n|next|s|step|q|quit|finish|up|down|list|where|disas\w*"
         r"|(?:thread apply all )?(?:bt|backtrace)(?: full)?|info [\w -]+|b(?:reak)? [\w.:/]+|frame \d+"
         r"|p(?:rint)? [\w.*&]+|set (?:pagination|confirm|print \w+) \w+)\0)")),
    Rule("pdflatex xelatex lualatex latex", "MEDIUM", "Gives {name} code.", text=re.compile(r"\0\\")),
    Rule("mvn mvnw", "MEDIUM", _DOWNLOADS, text=re.compile(r"\0(?!-)[\w.-]+:[\w.-]+:[^\0]")),
    Rule("npm pnpm yarn pip pip3 uv composer gh", "HIGH", "Leaves a setting outside of the workspace ({name}).",
         text=re.compile(r"\0(?:config|c|alias)\0(?:[^\0]*\0){0,2}(?:set|edit)\0|\A\0set\0")),
    Rule("git daemon send-email http-backend shell instaweb", "HIGH", _REMOTE),
    Rule("mount umount swapon swapoff mknod insmod modprobe rmmod nsenter unshare pivot_root kexec", "HIGH",
         "Changes mounts, the kernel or namespaces."),
    Rule("iptables ip6tables nft ufw setenforce visudo passwd chpasswd useradd usermod userdel adduser", "HIGH",
         "Changes the firewall or access control."),
    Rule("at batch", "HIGH", "Leaves something behind that runs by itself."),
    Rule("crontab", "HIGH", "Leaves something behind that runs by itself.", text=re.compile(r"\A(?!\0-l\0\Z)")),
    Rule("killall killall5 pkill skill snice xkill", "HIGH", "Ends other processes."),
    Rule("mail sendmail mutt msmtp", "HIGH", _REMOTE),
    Rule("history", "HIGH", "Wipes the shell's history.", letters="c"),
    Rule("mapfile readarray", "MEDIUM", _RUNS_TEXT, letters="C"),
    Rule("trap alias", "MEDIUM", "Leaves a command that runs later ({name}).", text=re.compile(r"\0[^-]")),
    Rule("enable hash", "HIGH", "Replaces what a name runs ({name}).", letters="fp"),
    Rule("dc", "HIGH", "A dc program that may run commands.", text=re.compile(r"!")),

    Rule("apt apt-get yum dnf brew", "MEDIUM", _INSTALLS, words="install remove purge upgrade"),
    Rule("pip pip3 npm pnpm gem cargo uv", "MEDIUM", _INSTALLS, words="install i uninstall"),
    Rule("make gmake ninja meson", "MEDIUM", _INSTALLS, words="install uninstall"),
    Rule("apk yarn", "MEDIUM", _INSTALLS, words="add del remove"),
    Rule("go", "MEDIUM", _INSTALLS, text=re.compile(r"\0(?!-)[^@\0]*@")),
    Rule("cpio", "HIGH", "Writes wherever the archive says.", text=re.compile(
        r"\A(?!.*\0(?:-[a-zA-Z]*t|--list))(?=.*\0(?:-[a-zA-Z]*i|--extract))", re.DOTALL)),
    Rule("go", "HIGH", _DOWNLOADS, text=re.compile(r"\A\0run\0(?:-[^\0]*\0){0,9}[^@\0]*@")),

    Rule("npm pnpm yarn bun deno jsr cargo poetry uv flit hatch pdm rye maturin mvn mvnw gradle gradlew sbt lein mill "
         "mix rebar3 dart flutter turbo nx lerna changeset vsce ovsx elm opam nimble spago", "HIGH", _PUBLISHES,
         words="publish hex.publish unpublish deploy deprecate dist-tag"),
    Rule("gem docker podman nerdctl buildah dotnet nuget pod dvc crane oras", "HIGH", _PUBLISHES, "--push",
         words="push"),
    Rule("twine huggingface-cli hf maturin cabal stack luarocks anaconda", "HIGH", _PUBLISHES, words="upload"),
    Rule("semantic-release gh-pages surge", "HIGH", _PUBLISHES),
    Rule("goreleaser skopeo", "HIGH", _PUBLISHES, words="release copy sync"),
    Rule("fab cap kamal heroku fly flyctl vercel netlify firebase wrangler serverless sls pulumi cdk sam", "HIGH",
         _PUBLISHES, "--prod --production", words="deploy publish destroy remove up run ssh push delete rollback"),
    Rule("ansible ansible-playbook", "HIGH", _REMOTE,
         text=re.compile(r"\A(?!.*\0(?:--check|--syntax-check|--list-\w+|--version)\0)", re.DOTALL)),
    Rule("rclone", "HIGH", _REMOTE, words="copy copyto sync move moveto delete purge serve mount"),
    Rule("gh glab", "HIGH", _PUBLISHES,
         words="merge create delete close edit comment review reopen set rerun cancel upload fork archive"),
    Rule("gh glab", "HIGH", _DOWNLOADS, text=re.compile(r"\0extension\0(?:install|exec)\0")),
    Rule("kubectl oc", "HIGH", _PUBLISHES,
         words="delete apply exec drain replace scale create edit patch label annotate set expose autoscale cordon "
         "uncordon taint run debug cp undo restart pause resume"),
    Rule("kubectl oc", "HIGH", "Takes keys out of a store.",
         text=re.compile(r"\A(?=.*[\0,/](?i:secrets?)[\0/,.?])(?=.*\0(?:-o|--output|--template|--raw))"
             r"|\A(?:\0[^\0]*){0,5}\0config\0view(?:\0[^\0]*){0,5}\0--raw\b", re.DOTALL)),
    Rule("terraform tofu", "HIGH", _PUBLISHES, words="destroy apply rm push delete taint untaint import force-unlock"),
    Rule("aws", "HIGH", _PUBLISHES, words="rm cp sync mv delete-object terminate-instances"),
    Rule("gcloud", "HIGH", _PUBLISHES, words="delete deploy"),
    Rule("helm", "HIGH", _PUBLISHES, words="install uninstall upgrade delete rollback push"),
    Rule("systemctl", "HIGH", _PUBLISHES,
         words="enable disable mask stop start restart edit poweroff reboot halt kexec"),
    Rule("docker podman", "HIGH", "Starts a container that reaches the host.",
         "--privileged --pid --cap-add --device --security-opt",
         text=re.compile(r"(?:-v|--volume|source|src)[=\0 ]?/[:\s,\0]")),
    Rule("docker podman", "MEDIUM", "Removes containers, images or volumes.",
         text=re.compile(r"\0(?:prune|rm|rmi)\0")),

    Rule("rails", "HIGH", _RUNS_TEXT, text=re.compile(r"\0(?:runner|r)\0(?![\w./-]+\.rb\0)")),
    Rule("rails rake mix php artisan console sequelize typeorm knex prisma", "MEDIUM", _CHANGES_DATA, text=re.compile(
         r"\0(?:[\w-]+:){0,3}(?:db|database|migrate|schema|ecto)[:.](?:drop|reset|purge|wipe|fresh|refresh|truncate)\b")),
    Rule("rails rake mix manage.py django-admin sequelize typeorm knex prisma alembic", "MEDIUM", _CHANGES_DATA,
         words="flush reset_db reset downgrade zero"),
    Rule("python python3", "MEDIUM", _CHANGES_DATA,
         text=re.compile(r"\0(?:[^\0]*/)?manage\.py\0(?:[^\0]*\0){0,3}(?:flush|reset_db|zero)\0")),
    Rule("dropdb dropuser", "HIGH", "Deletes a database or a user of it."),
    Rule("sqlite3 psql mysql mariadb duckdb", "MEDIUM", _CHANGES_DATA, text=re.compile(
         r"\b(?:delete\s{1,9}from|update\s{1,9}\S{1,99}\s{1,9}set|alter\s{1,9}(?:table|user|role|database)|grant|revoke|drop)\b",
         re.IGNORECASE)),
    Rule("duckdb", "HIGH", _DOWNLOADS, text=re.compile(
         r"\b(?:install|load)\s{1,9}(?:'|\w{1,99}\s{1,9}from\b)|allow_unsigned", re.IGNORECASE)),
    Rule("duckdb", "MEDIUM", _DOWNLOADS, text=re.compile(r"\binstall\s", re.IGNORECASE)),

    Rule("make gmake bmake pmake", "HIGH", "Gives make commands of its own.",
         text=re.compile(r"\0(?:\.?SHELL(?:FLAGS)?\s{0,9}[:?+!]{0,3}=|[^=\0]*=[^\0$`;|]*[$`;|])")),
    Rule("make gmake bmake pmake", "MEDIUM", "Gives make commands of its own.",
         text=re.compile(r"\0[^=\0-]*=[^\0]*\s")),
    Rule("sqlite3 psql mysql mariadb duckdb", "HIGH", "Lets {name} run a program.", text=re.compile(
         r"[\0\s](?:\.(?:sh|sy|lo|im|o|re|exc|ba|sa|cl|cd|ar|w)|\\[!ogwie]|\\copy|system\s)|\|\s{0,3}$|\b(?:writefile|load_extension|edit|fts3_tokenizer|pg_read_file|lo_import|lo_export|outfile|dumpfile)\b|\bprogram\s{1,3}'|(?i:\b(?:attach(?:\s{1,9}database)?|into|\bto)\s{1,9}['\"](?:file:)?(?:/|~|\.\.))")),

    Rule("git push", "HIGH", "Sends commits out (git push)."),
    Rule("git push", "HIGH", "Overwrites or deletes what others have (git push by force).",
         "--force --force-with-lease --mirror --delete --prune", "f", text=re.compile(r"\0[+:]")),
    Rule("git fetch pull clone ls-remote", "MEDIUM", "Uses the network ({name})."),
    Rule("git fetch pull clone ls-remote", "HIGH", "Puts computed text into a request of {name}.",
         text=re.compile(r"\$[({]|`")),
    Rule("git submodule bisect", "MEDIUM", "Runs what {command} says.", words="foreach run update"),
    Rule("git remote", "MEDIUM", "Changes where the repository gets and sends commits.",
         words="add set-url remove rm rename"),
    Rule("git clean filter-branch", "MEDIUM", _DISCARDS_WORK),
    Rule("git reset", "MEDIUM", _DISCARDS_WORK, "--hard"),
    Rule("git checkout restore", "MEDIUM", _DISCARDS, text=re.compile(r"\0(?:\.|--|-f|--force)\0")),
    Rule("git stash", "MEDIUM", _DISCARDS, words="drop clear"),
    Rule("git switch worktree", "MEDIUM", _DISCARDS, "--force --discard-changes", "f"),
    Rule("git rm", "MEDIUM", "Deletes a whole tree.", letters="r"),
    Rule("git reflog gc", "MEDIUM", "Deletes what git could bring back.", "--prune", words="expire delete"),
    Rule("git tag", "MEDIUM", "Deletes a tag.", "--delete", "d"),
    Rule("git notes", "MEDIUM", "Deletes notes.", words="remove prune"),
    Rule("git branch", "MEDIUM", "Deletes a branch that may not be merged.", "--delete --force", "DM"),
)
# fmt: on

_BY_PROGRAM: dict[str, list[Rule]] = {}
for _rule in _RULES:
    for _name in _rule.programs.removeprefix("git ").split():
        _BY_PROGRAM.setdefault(f"git {_name}" if _rule.programs.startswith("git ") else _name, []).append(_rule)

_AWK_RUNS = re.compile(r"\bsystem\b|\bgetline\b|(?<!\|)\|(?!\|)|@")
_AWK_WRITES = re.compile(r"\bprintf?\b(?:[^;}\n]{0,200}>{1,2}(?!=)|[^;}\n]{200})")
_AWK_TARGET = re.compile(r">\s{0,9}\"([^\"\\\n]{1,999})\"")
_SED_PLAIN = re.compile(
    r"[\s;{}]{0,99}(?:(?:\d{1,9}|\$|/(?:[^/\\\n]|\\.)*/I?)(?:,[+~]?(?:\d{1,9}|\$|/(?:[^/\\\n]|\\.)*/I?))?\s{0,4}!?\s{0,4}\{?\s{0,4})?"
    r"(?:[pdq=DNGHhgx]|\d{0,9}q|s(?P<end>[^\w\s\\])(?:(?!(?P=end))[^\\\n]|\\.)*(?P=end)"
    r"(?:(?!(?P=end))[^\\\n]|\\.)*(?P=end)[gpiIm\d]{0,9}(?:\s{0,4}w\s{0,4}+(?P<s>[^\n;}]{1,999}+))?|y/[^/]*/[^/]*/|"
    r"[aic]\\?[^;\n]*|:\s{0,4}\w+|[btT]\s{0,4}\w*|[wW]\s{0,4}+(?P<w>[^\n;}]{1,999}+))?\s{0,8}(?=[;\n}]|$)"
)
"""One sed command without `e`, up to a `;`, a `}` or the end of the line; groups `s` and `w`: files that it writes."""


_MAX_SED_CHARS = 4000


def is_ruled(program: str) -> bool:
    """Whether rules of their own know the program, beside the table."""
    return bool(_rules_of(program))


def simple_findings(command: SimpleCommand, *, workdir: str) -> Iterator[Finding]:
    """Findings in one command, regardless of other commands."""
    name = command.program
    part = subcommand(command) if name == "git" else command
    rules = [rule for rule in _rules_of(part.program) if rule.holds(part)]
    yield from (rule.finding(part) for rule in rules if rule.what != _PUBLISHES or not _is_dry_run(part))
    if name in _BY_TARGET:
        yield from _BY_TARGET[name](command, workdir)
    if name in NETWORK:
        yield from address_findings(command)
    yield from secret_findings(" ".join(command.arguments))
    yield from variable_findings(command)
    for target in command.written:
        yield from write_findings(target, command, workdir=workdir)


def _is_dry_run(command: SimpleCommand) -> bool:
    """Whether the program only says what it would do; an unknown option might take `--dry-run` for its value."""
    items = arguments_of(command).items
    dry_runs = [item.text for item in items if item.kind == "dry"]
    is_known = not any(item.kind.startswith(UNKNOWN) for item in items)
    return (
        bool(dry_runs)
        and is_known
        and set(dry_runs) <= {"", "client", "server", "true"}
        and {"false", "none", "null"}.isdisjoint(command.arguments)  # nopt takes `--dry-run false`
        # what the shell computes, or the name of a file, may be an option that cancels it
        and command.splits.isdisjoint(command.arguments)
        and not any(set("$`*?[").intersection(word) or COMPUTED in word for word in command.arguments)
    )


def _rules_of(program: str) -> list[Rule]:
    """Return the program's rules; `mkfs.ext4`, which has none, gets the unconditional HIGH rules of `mkfs`."""
    stem = [rule for rule in _BY_PROGRAM.get(program.split(".", 1)[0], ()) if rule.is_plain and rule.risk == "HIGH"]
    return _BY_PROGRAM.get(program, stem)


def _text(command: SimpleCommand) -> str:
    return "\0".join(["", *command.arguments, *([] if command.stdin is None else [command.stdin]), ""])


# --- programs whose targets decide --------------------------------------------------------------------


def _rm(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    recursive = bool(set(command.flags) & {"r", "R"}) or command.has("--recursive")
    if command.has("--no-preserve-root"):
        yield Finding("HIGH", "Deletes the root directory.")
    for target in command.operands:
        path = command.full(target)
        if recursive and is_wide(path, workdir=workdir):
            yield Finding("HIGH", f"Deletes {quoted(target)} as a tree, which is more than the workspace's own files.")
        elif recursive and path[:1] in {"$", "`"}:
            yield Finding("HIGH", f"Deletes as a tree what {quoted(path)} stands for; if empty, perhaps all.")
        else:
            yield from place_findings(path, workdir=workdir)
    if recursive or any(re.fullmatch(r"(?:.*/)?[*?\[\]a-zA-Z!-]*\*", target) for target in command.operands):
        yield Finding("MEDIUM", "Deletes a whole tree, or all files of a directory.")
    elif any(re.search(r"[$`]", target) for target in command.operands):
        yield Finding("MEDIUM", "Deletes what the shell computes.")
    if {"xargs", "fd", "fdfind", "parallel"} & set(command.wrapped_by):
        yield Finding("MEDIUM", "Deletes what another program lists.")


def _change_rights(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    recursive = "R" in command.flags or command.has("--recursive")
    mode, *targets = command.operands or [""]
    for target in map(command.full, targets):
        if recursive and is_wide(target, workdir=workdir):
            yield Finding("HIGH", f"Changes the rights of {quoted(target)} as a tree.")
        elif is_wide(target, workdir=workdir):
            yield from place_findings(target, workdir=workdir)
    if command.program == "chmod" and re.fullmatch(r"[ugoa]*[+=][rwx]*s[rwx]*|0?[2-7]\d{3}", mode):
        yield Finding("HIGH", "Lets a program run with its owner's rights (setuid, setgid).")


def _find(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    if command.has("-delete") or ("rm" in command.arguments and command.has("-exec", "-execdir")):
        targets = [command.full(target) for target in command.operands[:1]]
        wide = any(is_wide(target, workdir=workdir) and target.rstrip("/") != workdir for target in targets)
        wide = wide and not command.operands[0].startswith(".")
        yield Finding("HIGH" if wide else "MEDIUM", "Deletes what `find` finds.")
    starts = [item.text for item in arguments_of(command).of_kind("read") if not item.option]
    runs = any(arguments_of(command).of_kind("argv"))
    if (runs or command.consumer not in {"", "echo", "printf", "wc", "ls", "file", "stat"}) and any(
        map(is_home, starts)
    ):
        yield Finding("HIGH", f"Hands all of {quoted(' '.join(starts))} on, keys and passwords included.")
    if runs:
        words = {word.rsplit("/", 1)[-1] for word in command.arguments}
        runs_shell = not words.isdisjoint(
            {"sh", "bash", "dash", "zsh", "ksh", "ash", "xargs", "eval", "python", "perl"}
        )
        if runs_shell and any("{}" in word and re.search(r"[\s;|&$(]", word) for word in command.arguments):
            yield Finding("HIGH", "Puts the names that `find` finds into a shell's text.")
        elif runs_shell and "{}" in command.arguments:
            yield Finding("MEDIUM", "Runs a shell for what `find` finds.")


def _sed(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for script in [item.text for item in arguments_of(command).of_kind("pattern")]:
        yield from _computed_program(script, command)
        at = 0
        while at < min(len(script), _MAX_SED_CHARS):
            match = _SED_PLAIN.match(script, at)
            if match is None or match.end() == at:
                break
            at = match.end() + 1
            if target := (match["s"] or match["w"] or "").strip():
                yield from write_findings(target, command, workdir=workdir)
                yield Finding("MEDIUM", f"A sed script that writes {quoted(target)}.")
        if at < len(script):
            yield Finding("HIGH", "A sed script that may run commands.")


def _computed_program(program: str, command: SimpleCommand) -> Iterator[Finding]:
    """Findings for a program of sed or awk of which the shell computes all (HIGH) or a part."""
    if program in command.computed:
        is_whole = re.fullmatch(r"\$\w+|\$\{[^}]*\}|\$\(\.\.\.\)", program) is not None
        yield Finding("HIGH" if is_whole else "MEDIUM", f"Runs a text that the shell computes ({command.program}).")


def _awk(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    text = " ".join(command.operands)
    yield from _computed_program(next(iter(command.operands), ""), command)
    if _AWK_RUNS.search(text):
        yield Finding("HIGH", "An awk program that may run commands.")
    elif _AWK_WRITES.search(text):
        targets = _AWK_TARGET.findall(text)
        is_plain = len(targets) == len(re.findall(r">(?!=)", text.replace(">>", ">")))
        yield Finding("MEDIUM" if is_plain else "HIGH", "An awk program that may write files.")
        for target in targets:
            yield from write_findings(target, command, workdir=workdir)
    if re.search(r"\0(?:-[fE]|--file|--exec|(?:-i|--include)(?![\0=]?inplace\0))", _text(command)):
        yield Finding("MEDIUM", "An awk program of a file, which the rules do not read.")


def _perl(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    """perlfunc(1), open: `<>` opens names with two arguments, so `x|` and `|x` are commands, and `>x` is written."""
    for item in arguments_of(command).of_kind("read", "script"):
        if re.match(r"\s{0,9}(?:\||\+?>)|.*\|\s{0,9}\Z", item.text, re.DOTALL):
            yield Finding("HIGH", f"Has perl run a command or write a file: {quoted(item.text)}.")
        elif item.text in command.computed or re.match(r"[*?\[]", item.text):
            yield Finding("MEDIUM", f"Has perl open a computed name, which may be a command: {quoted(item.text)}.")


def _move(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:-1]:
        if is_wide(command.full(target), workdir=workdir):
            yield Finding("HIGH", f"Moves {quoted(target)} away.")
        yield from (finding for finding in place_findings(command.full(target), workdir=workdir) if ".git" in target)


def _kill(command: SimpleCommand, _workdir: str) -> Iterator[Finding]:
    words = [*command.arguments]
    if words[:1] in (["-0"], ["-l"], ["-L"]) or words[:2] in (["-s", "0"], ["-n", "0"]):
        return
    if words[:1] in (["-s"], ["-n"]):
        words = words[2:]
    elif len(words) > 1 and words[0].startswith("-"):
        words = words[1:]
    others = [word for word in words if word != "--" and not re.fullmatch(r"%[\w%+-]*|\$!", word)]
    if others:
        yield Finding("HIGH", f"Ends a process that is no job of this shell: {quoted(' '.join(others))}.")


def _link(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:-1] or command.operands:
        if list(place_findings(command.full(target), workdir=workdir)):
            yield Finding("MEDIUM", f"Makes a link to {quoted(target)}, which is outside the workspace.")


def _change_directory(command: SimpleCommand, workdir: str) -> Iterator[Finding]:
    for target in command.operands[:1]:
        inside = command.full(target).rstrip("/") + "/x"
        if any(
            finding.risk == "HIGH" and "outside" not in finding.what
            for finding in place_findings(inside, workdir=workdir)
        ):
            yield Finding("HIGH", f"Goes to {quoted(target)}, whose files run by themselves.")
        elif list(place_findings(inside, workdir=workdir)):
            yield Finding("MEDIUM", f"Leaves the workspace: {quoted(target)}.")


_BY_TARGET: dict[str, Callable[[SimpleCommand, str], Iterator[Finding]]] = {
    "rm": _rm,
    "rimraf": lambda command, workdir: _rm(command._replace(arguments=("-r", *command.arguments)), workdir),
    "git": git_findings,
    "mv": _move,
    "perl": _perl,
    "ln": _link,
    "kill": _kill,
    **dict.fromkeys(("chmod", "chown", "chgrp"), _change_rights),
    **dict.fromkeys(("find", "fd", "fdfind"), _find),
    **dict.fromkeys(("sed", "gsed"), _sed),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("cd", "pushd"), _change_directory),
}
