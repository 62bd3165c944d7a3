"""What a shell keeps between commands, and how any text that may be a command ends."""
# ruff: noqa: S101, D103, PLR2004, S108 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.runtime.process.invocation import NEWLINE
from ohsandbox.runtime.shell.session import SESSION
from ohsandbox.testing.conformance.case import CASE_TIMEOUT_S, needs, refuses
from ohsandbox.testing.conformance.scratch import soon

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.testing.conformance.case import Session


def _survives(*commands: str, timeout_s: float = CASE_TIMEOUT_S) -> Callable[[Session], None]:
    """The case that a shell serves as before after each of the commands, whatever comes of it."""

    def check(shell: Session) -> None:
        for command in commands:
            shell(command, timeout_s=timeout_s)
            told = shell("echo ok")
            assert (told.output, told.exit_code) == ("ok\n", 0), command

    return check


# --- kept ---


@needs("bash")
def what_runs_before_a_prompt_does_not_hold_up_later_commands(shell: Session) -> None:
    for setting in ("PROMPT_COMMAND='sleep 100'", "PS0='$(sleep 100)'", "PS1='$(sleep 100)'", "PS2='$(sleep 100)'"):
        assert shell(setting, timeout_s=10).exit_code == 0
        assert shell("echo ok", timeout_s=10).output == "ok\n"


@needs("bash")
def what_cannot_be_kept_from_running_before_a_prompt_costs_the_shell_and_it_is_told(shell: Session) -> None:
    shell("export KEPT=yes; readonly PROMPT_COMMAND='sleep 100'", timeout_s=30)
    told = shell("echo $KEPT", timeout_s=30)
    assert (told.output, told.timed_out) == ("yes\n", False)
    assert "started again" in (told.notice or "")


@needs("bash")
def a_warning_of_a_here_document_counts_no_lines_of_ours(shell: Session) -> None:
    said = "bash: warning: here-document delimited by end-of-file (wanted `EOF')\nhi\n"
    assert shell("cat <<EOF\nhi").output == said


def the_working_directory_is_kept_and_told(shell: Session) -> None:
    assert shell("cd /tmp").cwd == "/tmp"
    assert shell("pwd").output == "/tmp\n"


def a_shell_begins_in_the_workdir(shell: Session) -> None:
    told = shell("pwd")
    assert told.output == f"{shell.runtime.workdir}\n"
    assert told.cwd == shell.runtime.workdir


def exported_and_plain_variables_are_kept(shell: Session) -> None:
    shell("export A=b; C='d  e'")
    assert shell('echo "$A" "$C"; sh -c \'echo "$A$C"\'').output == "b d  e\nb\n"


def a_command_may_set_variables_and_functions_of_the_names_in_our_scripts(shell: Session) -> None:
    names = sorted({*re.findall(r"\bohs_\w+", SESSION + NEWLINE)})
    assert "ohs_n" in names
    setting = "\n".join([f"{name}=0\n{name}() {{ echo no; }}" for name in names] + ["(exit 3)"])
    assert [told.exit_code for told in (shell(setting), shell("(exit 4)\n"))] == [3, 4]
    told = shell('printf "$ohs_n\n"')
    assert (told.output, told.exit_code, told.notice) == ("0\n", 0, None)


def functions_and_aliases_are_kept(shell: Session) -> None:
    shell("greet() {\n  echo hello $1\n}\nalias twice='greet'")
    assert shell("greet you; twice me").output == "hello you\nhello me\n"


def a_sourced_environment_is_kept(shell: Session) -> None:
    shell("printf 'export VENV=on\\nPATH=/venv/bin:$PATH\\nleave() { unset VENV; }\\n' >/tmp/activate-$$")
    shell(". /tmp/activate-$$; rm /tmp/activate-$$")
    assert shell('echo $VENV; case $PATH in /venv/bin:*) echo first;; esac; leave; echo "<$VENV>"').output == (
        "on\nfirst\n<>\n"
    )


def the_last_exit_code_is_kept(shell: Session) -> None:
    assert shell("(exit 7)").exit_code == 7
    assert shell("echo $?").output == "7\n"


def umask_options_and_positional_words_are_kept(shell: Session) -> None:
    shell("umask 027; set -f; set -- one 'two  three'")
    umask, rest = shell('umask; echo *; echo "$2"').output.split("\n", 1)
    assert (int(umask, 8), rest) == (0o027, "*\ntwo  three\n")


def jobs_are_kept_and_numbered_as_the_user_expects(shell: Session) -> None:
    shell("sleep 60 &")
    assert shell("jobs").output.lower().count("running") == 1
    assert shell("kill %1; wait %1 2>/dev/null; jobs >/dev/null; kill -0 $! 2>/dev/null || echo gone"
                 ).output.endswith("gone\n")  # fmt: skip


@needs("bash")
def declared_arrays_are_kept(shell: Session) -> None:
    shell("declare -A map; map[k]=v; list=(a 'b c')")
    assert shell('echo "${map[k]}" "${list[1]}"').output == "v b c\n"


def a_trap_runs_when_its_signal_comes(shell: Session) -> None:
    shell("trap 'echo caught' USR1")
    assert "caught\n" in shell("kill -USR1 $$; true").output
    shell("trap - USR1")


# --- how commands end ---


def exit_codes_are_the_commands_own(shell: Session) -> None:
    for code in (0, 1, 2, 124, 126, 127, 130, 137, 143, 255):
        told = shell(f"sh -c 'exit {code}'")
        assert (told.exit_code, told.timed_out, told.notice) == (code, False, None)


def a_child_that_dies_of_a_signal_is_128_and_its_number(shell: Session) -> None:
    for signal, code in (("KILL", 137), ("TERM", 143), ("SEGV", 139), ("INT", 130)):
        told = shell(f"sh -c 'kill -{signal} $$'")
        assert (told.exit_code, told.timed_out) == (code, False), signal


def a_missing_program_is_127_and_one_that_cannot_run_126(shell: Session) -> None:
    missing = shell("no-such-program")
    assert missing.exit_code == 127
    assert "no-such-program" in missing.output
    assert shell("/etc/passwd").exit_code == 126


def an_error_in_a_part_of_a_command_ends_that_part_only(shell: Session) -> None:
    shell("printf 'false\\n' >fails.sh")
    for part in (
        "x=$(echo ${NO_NAME:?})",
        "(. ./no-such-file)",
        "n=$(echo $((1 / 0)))",
        "(. ./fails.sh && echo unreached)",
        "x=$(cat ${NO_NAME:?})",
        "echo line | while read line; do echo ${NO_NAME:?}; done",
        "(readonly NO_CHANGE=1; NO_CHANGE=2; exit 3)",
    ):
        with soon():
            observation = shell(f"{part}; echo after")
        assert observation.output.endswith("after\n"), part
        assert observation.exit_code == 0, part


def an_error_in_a_part_of_a_pipeline_reports_nothing(shell: Session) -> None:
    for part in (": ${NO_NAME:?}", "x=$((1 / 0))", "(: ${NO_NAME:?})"):
        observation = shell(f"{part} | cat; sleep 0.1; echo after")
        assert (observation.output.endswith("after\n"), observation.exit_code) == (True, 0), part


def an_error_of_a_special_builtin_loses_nothing_of_the_shell(shell: Session) -> None:
    shell("kept=yes; f() { echo function; }")
    for command in ("shift 99", "set -o no-such-option", "export 1x=2", ". ./no-such-file", "echo ${NO_NAME:?}"):
        with soon():
            shell(command)
        assert shell("echo $kept; f").output == "yes\nfunction\n", command


def line_editing_options_leave_the_shell_alive(shell: Session) -> None:
    shell("kept=yes")
    for command in ("set -o vi; echo set", "eval 'set -o vi'; echo set", "set +o vi; echo set"):
        assert shell(command).output.endswith("set\n"), command
    assert shell("echo $kept").output == "yes\n"


def a_command_may_end_in_a_backslash(shell: Session) -> None:
    for command in ("echo one \\", "echo two; echo one \\"):
        observation = shell(command)
        assert observation.exit_code == 0, command
        assert "one" in observation.output


def a_command_does_not_find_itself_in_the_variables(shell: Session) -> None:
    assert shell("set | grep no-such-text").output == ""
    assert shell("set -o vi; set +o vi; true; set -o vi; echo set").output.endswith("set\n")
    assert shell("set | grep -v ohsandbox_ | grep ohs_").output == ""


@needs("bash")
def a_command_that_turns_on_line_editing_is_not_kept_as_a_variable(shell: Session) -> None:
    shell("set -o vi; set +o vi; : unusual-text")
    assert shell("set | grep unusual[-]text").output == ""


@needs("bash")
def the_history_holds_nothing_of_ours(shell: Session) -> None:
    assert "ohs" not in shell("history").output


def a_comment_is_a_command_that_succeeds(shell: Session) -> None:
    told = shell("# nothing")
    assert (told.output, told.exit_code, told.running) == ("", 0, False)


def unbalanced_text_ends_at_once(shell: Session) -> None:
    for command in ("echo 'abc", 'echo "abc', "echo $(", "if true; then", "f() {", "fi", "echo `", "(", "case x in"):
        with soon():
            told = shell(command)
            assert told.exit_code not in (0, None), command
            assert not told.running
        assert shell("echo ok").output == "ok\n", command


def an_unterminated_heredoc_ends(shell: Session) -> None:
    told = shell("cat <<EOF\nline")
    assert not told.running
    assert shell("echo ok").output == "ok\n"


stray_control_words_do_no_harm = _survives(
    "return 5", "break", "continue 3", "shift 99", "local x=1", "\\", ";", "&", "{", "!", "!!", "return"
)


def an_unset_variable_under_set_u_is_an_error_and_no_end(shell: Session) -> None:
    told = shell("set -u; echo $nope; echo unreached")
    assert told.exit_code not in (0, None)
    assert "nope" in told.output
    assert "unreached" not in told.output


def a_command_with_a_nul_is_refused_and_not_run(shell: Session) -> None:
    refuses(lambda: shell("echo a >/tmp/nul-ran\0"), UsageError, ValueError)
    assert shell("ls /tmp/nul-ran").exit_code != 0


# --- shapes of commands ---


def commands_of_several_lines_run_as_written(shell: Session) -> None:
    told = shell(
        "f() {\n\tcase $1 in\n\t  a*) echo one \\\n\t    two;;\n\t  *) echo other;;\n\tesac\n}\n\nf abc\nf x\n"
    )
    assert told.output == "one two\nother\n"


def carriage_returns_at_line_ends_do_not_reach_the_output(shell: Session) -> None:
    assert shell("echo a\r\necho b\r\n").output == "a\nb\n"


def two_heredocs_stand_side_by_side(shell: Session) -> None:
    told = shell("cat <<A; cat <<'B'\n$((1+1))\nA\n$x 'EOF' \"B\"\nB\necho \"\nEOF\n\"")
    assert told.output == "2\n$x 'EOF' \"B\"\n\nEOF\n\n"


def a_heredoc_of_5_mb_arrives_exactly(shell: Session) -> None:
    body = "".join(f"{i:06d} $HOME `x` \\ ' \"\n" for i in range(200_000))
    told = shell(f"cat >/tmp/heredoc-$$ <<'EOF'\n{body}EOF\necho $$")
    path = f"/tmp/heredoc-{told.output.strip()}"
    arrived = shell.runtime.read_bytes(path)
    shell(f"rm {path}")
    assert arrived == body.encode()


def a_command_of_1_mib_arrives_exactly(shell: Session) -> None:
    body = "é" * (512 * 1024)
    assert shell(f"x='{body}'\nwc -c <<EOF\n$x\nEOF").output.strip() == str(len(body.encode()) + 1)


def trailing_newlines_of_a_command_change_nothing(shell: Session) -> None:
    assert shell("\n\n  echo hi  \n\n").output == "hi\n"
    assert shell("cat <<EOF\na\n\nEOF\n").output == "a\n\n"


# --- shells that are misused ---


def redirecting_the_shell_itself_does_not_hide_later_output(shell: Session) -> None:
    for command in ("exec >/tmp/f-$$", "exec 2>/dev/null", "exec </dev/null", "exec 1>&-", "exec 2>&-", "exec 0<&-"):
        shell(command)
        assert shell("echo ok; echo err >&2").output == "ok\nerr\n", command


def closing_every_descriptor_is_survived(shell: Session) -> None:
    shell("exec 200>&- 201>&- 250>&- 251>&- 255>&-")
    assert shell("echo ok").output == "ok\n"
    shell('for n in 0 1 2 3 4 5 6 7 8 9; do eval "exec $n>&-"; done')
    assert shell("echo ok").output == "ok\n"


def traps_of_the_command_neither_hang_nor_hide(shell: Session) -> None:
    shell("trap 'echo T' DEBUG EXIT ERR 2>/dev/null || trap 'echo T' EXIT")
    assert "ok\n" in shell("echo ok").output
    shell("trap - DEBUG EXIT ERR 2>/dev/null || trap - EXIT")


def an_exit_trap_of_the_command_runs_and_the_code_is_told(shell: Session) -> None:
    """What the trap prints is not asked for: a shell that leaves has given its terminal back."""
    mark = f"/tmp/{shell.name}-left"
    assert shell(f"trap 'echo bye; : >{mark}' EXIT; exit 4").exit_code == 4
    assert shell(f"rm {mark}").exit_code == 0


@needs("bash")
def a_debug_trap_that_skips_every_command_is_recovered_from(shell: Session) -> None:
    shell("shopt -s extdebug; trap false DEBUG", timeout_s=2)
    shell("echo skipped", timeout_s=2)
    shell("trap - DEBUG; shopt -u extdebug", timeout_s=2)


def redefined_builtins_do_not_reach_us(shell: Session) -> None:
    for name in ("printf", "command", "export", "cd", "trap", "eval", "stty"):
        shell(f"{name}() {{ echo evil; }}")
        assert shell("echo ok").output == "ok\n", name
        shell(f"unset -f {name}")


@needs("bash")  # elsewhere these are no names of functions, or found before functions
def a_test_that_is_redefined_costs_no_report(shell: Session) -> None:
    """Without a report the shell is discarded, and its variables with it."""
    shell("kept=kept")
    for name in ("[", "test", "read", "umask", "ulimit", "mkdir", ":", "cat"):
        shell(f"{name}() {{ return 1; }}")
        assert shell("echo $kept").output == "kept\n", name
        assert shell(f"#{'x' * 20_000}\necho $kept").output == "kept\n", name
        shell(f"unset -f {name}")


def aliased_builtins_do_not_reach_us(shell: Session) -> None:
    for name in ("printf", "command", "eval", "case"):
        shell(f"alias {name}='echo evil'")
        assert shell("echo ok").output == "ok\n", name
        shell(f"\\unalias {name}")


unusual_shell_options_do_not_reach_us = _survives(
    "IFS=0123456789abcdef", "set -f", "set -C", "set -a", "set -n", "set -m", "set +m", "unset HOME"
)
unusual_bash_options_do_not_reach_us = needs("bash")(_survives(
    "set -o posix", "shopt -s failglob", "set -k", "set -T", "set -E", "set -P", "enable -n printf"
))  # fmt: skip


@needs("bash")  # busybox finds its own applets without a path
def without_a_path_a_program_is_cleanly_not_found(shell: Session) -> None:
    assert shell('unset PATH; echo "<$PATH>"').output == "<>\n"
    assert shell("echo ok").output == "ok\n"
    assert shell("PATH=/nowhere; sh -c true").exit_code == 127


def limits_that_a_command_sets_on_its_shell_are_survived(shell: Session) -> None:
    for limit in ("-n 3", "-v 30000", "-f 0", "-s 64"):
        shell(f"ulimit {limit}", timeout_s=3)
        shell("true", timeout_s=3)
        assert shell("echo ok").output == "ok\n", limit
        shell("exit 0")


@needs("isolated")
def a_limit_of_one_process_is_survived(shell: Session) -> None:
    shell("ulimit -u 1", timeout_s=3)
    shell("ls /", timeout_s=3)
    assert shell("echo ok").output == "ok\n"
    shell("exit 0")


def a_limit_of_processor_time_ends_the_shell_and_it_is_told(shell: Session) -> None:
    told = shell("ulimit -t 1; while :; do :; done")
    assert told.exit_code in (137, 152)
    assert told.notice


history_and_job_builtins_do_no_harm = _survives(
    "history -c; fc -l", "disown -a; jobs; fg", "bg", "fg %7", "wait", "hash -r", "times", "suspend -h",
    timeout_s=3,
)  # fmt: skip


def a_terminal_left_in_another_mode_is_put_right(shell: Session) -> None:
    for command in ("stty raw -echo", "stty echo", "reset", "tput init", "stty -icanon min 0", "stty onlcr opost"):
        shell(command, timeout_s=5)
        assert shell("printf 'a\\nb\\n'").output == "a\nb\n", command
    assert " icanon" in shell("stty -a").output


def mounting_and_namespaces_harm_nothing(shell: Session) -> None:
    if shell.runtime.private_processes:
        shell("mount -t tmpfs x /mnt; unshare -r true; dmesg | head -n 1; umount /mnt")
        assert shell("echo ok").output == "ok\n"
