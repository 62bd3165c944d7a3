"""Every case of the shipped suite, against every flavour of runtime that is ours."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ohsandbox.testing.conformance import (
    CASES,
    THEMES,
    Case,
    files,
    ports,
    run,
    sessions,
    shell_interactive,
    shell_output,
    shell_recovery,
    shell_state,
    tools,
    trees,
)
from tests.runtime.engines import PODMAN, RUNSC
from tests.runtime.ssh_server import PROGRAM as SSHD

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ohsandbox.runtime.base import Runtime

IMAGES = ("debian", "nonroot", "busybox", "hostile")
SHELLS = ("shell-dash", "shell-bash", "shell-busybox-1.35")
"""Images of `images/base/build shells`, whose only shell is one that public images have as /bin/sh."""
RARE_SHELLS = ("shell-mksh", "shell-ksh93", "shell-yash", "shell-zsh")
"""The same, of shells that hardly an image has as its only one."""
IN_DOCKER = (*IMAGES, *SHELLS, *RARE_SHELLS, "podman", "gvisor")
QUICK = ("debian", "busybox", "cli")
"""Flavours of `make test`: a sandbox with GNU's tools, one with hardly any, and this host. The others are slow."""
KNOWN_FAILURES: dict[tuple[str, str], str] = {
    ("shell-busybox-1.35", "a_program_inherits_no_descriptor_of_ours"): "as busybox",
    ("busybox", "a_program_inherits_no_descriptor_of_ours"): "ash leaves its saved descriptors, 10 and up, to children",
    ("gvisor", "a_program_that_another_one_answers_does_not_wait"): "a terminal made inside is no program's /dev/tty",
    ("gvisor", "an_interrupt_between_two_commands_of_a_list_is_not_lost"): "which group is in front is not known there",
    ("gvisor", "the_first_process_cannot_be_killed"): "gVisor kills it, and the sandbox is started again",
    ("gvisor", "proc_takes_no_file_and_the_message_names_none_of_ours"): "gVisor says EPERM where Linux says ENOENT",
    **{
        (shell, case): "whose message it is cannot be told: the code is right, `not_started` is not"
        for shell in ("shell-mksh", "shell-yash", "shell-zsh")
        for case in ("a_missing_program_is_127_and_not_started", "a_file_that_is_no_program_is_126_and_not_started")
    },
    ("shell-ksh93", "a_missing_program_is_127_and_not_started"): "as mksh",
    **{
        (shell, case): why
        for shell in ("shell-mksh", "shell-yash", "shell-zsh")
        for case, why in {
            "a_trace_shows_the_command_and_nothing_of_ours": "`set -x` shows our `eval`",
            "a_command_with_crlf_line_ends_is_told_what_is_wrong": "its words for such an error are others",
        }.items()
    },
    **dict.fromkeys(
        (
            ("shell-mksh", "a_session_runs_as_its_user"),
            ("shell-mksh", "control_z_stops_the_program_as_a_job"),
            ("shell-mksh", "a_child_that_stops_itself_does_not_hang"),
            ("shell-ksh93", "control_z_stops_the_program_as_a_job"),
            ("shell-ksh93", "control_backslash_quits"),
            ("shell-ksh93", "a_program_may_refuse_control_c"),
            ("shell-ksh93", "run_survives_stdin_that_nobody_reads"),
            ("shell-zsh", "a_background_reader_neither_waits_nor_blocks"),
            ("shell-zsh", "an_interrupt_between_two_commands_of_a_list_is_not_lost"),
            ("shell-zsh", "a_timeout_spares_earlier_background_jobs"),
            ("shell-zsh", "a_killed_program_leaves_no_raw_terminal_and_no_job_number"),
            ("shell-yash", "run_passes_every_argument_as_it_is"),
            ("shell-yash", "run_passes_sixteen_arguments_of_64_kib"),
            ("shell-yash", "run_takes_a_path_of_the_callers"),
            ("shell-yash", "undecodable_bytes_of_a_command_arrive"),
            ("shell-yash", "control_c_answers_a_question_too"),
            ("shell-yash", "a_program_may_refuse_control_c"),
            ("shell-yash", "a_timeout_spares_what_other_calls_started_meanwhile_though_it_has_no_mark"),
            ("shell-yash", "a_shell_that_ignores_signals_is_replaced_and_it_is_told"),
            ("shell-yash", "what_an_exit_trap_prints_is_shown_and_disturbs_no_other_command"),
            ("shell-yash", "exec_replaces_the_shell_and_ends_with_the_program"),
        ),
        "seen in November 2026, cause not looked for: named in docs/images.md",
    ),
    ("shell-mksh", "a_command_does_not_find_itself_in_the_variables"): "mksh keeps its latest line in $_",
    ("shell-zsh", "jobs_are_kept_and_numbered_as_the_user_expects"): "zsh counts our own commands: the first job is %3",
    ("shell-yash", "an_unset_variable_under_set_u_is_an_error_and_no_end"): "yash goes on when it is interactive",
    ("shell-yash", "an_exit_trap_of_the_command_runs_and_the_code_is_told"): "yash sends no report when it exits there",
}
"""(flavour, case) -> why it cannot pass there. Strict: one that passes must leave this list."""


SERVER = pytest.mark.skipif(SSHD is None, reason="sshd is not installed (Debian: openssh-server)")
OWN_ENGINE = pytest.mark.one_engine
SERVICE = pytest.mark.skipif(PODMAN is None, reason="no Podman for this user (Debian, as root: podman)")


def _marks(name: str, case: Case) -> list[pytest.MarkDecorator]:
    why = KNOWN_FAILURES.get((name, case.name))
    known = [pytest.mark.xfail(reason=why, strict=True)] if why else []
    needed = {"ssh": [SERVER], "podman": [SERVICE], "gvisor": [OWN_ENGINE]}.get(name, [])
    if name in IN_DOCKER:
        needed = [*needed, pytest.mark.docker]
    if name not in QUICK:
        needed = [*needed, pytest.mark.slow]
    return [*needed, *known]


READ_BY_A_SESSION = (sessions, shell_output, shell_interactive, shell_recovery)
"""Themes in which two channels are read at once, which is another code path where they have no descriptors."""

OF_A_CONNECTION = (run, sessions, shell_interactive, trees, tools, ports)
"""Themes in which `ssh` has a part: streams, ends, terminals, bulk data. OHSANDBOX_CONFORMANCE=all: every case."""

OF_AN_ENGINE = (run, sessions, trees, ports)
"""Themes in which an engine's API has a part: streams, ends, users, bulk data."""

OF_AN_IMAGE = (run, sessions, shell_state, files, trees, tools, ports)
"""Themes in which the settings of an image have a part, where its shell and programs are Debian's as well."""

OF_A_SHELL = (run, sessions, shell_interactive, shell_output, shell_recovery, shell_state)
"""Themes that a shell has a part in: the others are the engine's and the programs'."""

OF_EACH_SHELL = {
    "exported_and_plain_variables_are_kept",
    "functions_and_aliases_are_kept",
    "the_working_directory_is_kept_and_told",
    "the_last_exit_code_is_kept",
    "jobs_are_kept_and_numbered_as_the_user_expects",
    "an_error_in_a_part_of_a_command_ends_that_part_only",
    "an_error_of_a_special_builtin_loses_nothing_of_the_shell",
    "unbalanced_text_ends_at_once",
    "two_heredocs_stand_side_by_side",
    "a_command_may_set_variables_and_functions_of_the_names_in_our_scripts",
    "redefined_builtins_do_not_reach_us",
    "closing_every_descriptor_is_survived",
    "a_program_that_reads_is_reported_as_waiting_within_a_second",
    "control_c_ends_the_program_and_keeps_the_shell",
    "exit_tells_its_code_and_where_the_shell_was",
    "the_exported_environment_outlives_the_shell",
    "a_shell_keeps_its_state_without_the_files_of_its_session",
}
"""Cases that the shell itself decides: state, quoting, errors, jobs, input, ends. OHSANDBOX_CONFORMANCE=all asks each
shell `OF_A_SHELL`."""

OF_ITS_OWN = (run, sessions)
"""Of `FakeRuntime`, which is `CLIRuntime` but for its start and its end."""
WHOLE = os.environ.get("OHSANDBOX_CONFORMANCE") == "all"
PARTS: dict[str, tuple[ModuleType, ...]] = {
    "fake": OF_ITS_OWN,
    "descriptorless": READ_BY_A_SESSION,
    "ssh": OF_A_CONNECTION,
    "podman": OF_AN_ENGINE,
    "hostile": OF_AN_IMAGE,
    **dict.fromkeys((*SHELLS, *RARE_SHELLS), ()),
    "shell-dash": (shell_state,),
}
"""Flavours that are asked a part of the cases: the rest is the code and the image of another flavour."""


def _is_asked(name: str, case: Case) -> bool:
    themes = PARTS.get(name, THEMES)
    if name in (*SHELLS, *RARE_SHELLS):
        if case.name in OF_EACH_SHELL:
            return True
        themes = OF_A_SHELL if WHOLE else themes
    elif WHOLE:
        themes = THEMES
    return any(hasattr(theme, case.name) for theme in themes)


FLAVOURED = [
    pytest.param(name, case, marks=_marks(name, case), id=f"{name}-{case.name}")
    for name in ("fake", "descriptorless", "cli", "ssh", *IN_DOCKER)
    if name != "gvisor" or RUNSC  # 340 lines of "skipped" say less than the page that names OHSANDBOX_TEST_RUNSC
    for case in CASES
    if _is_asked(name, case)
]


@pytest.mark.parametrize(("name", "case"), FLAVOURED)
def test_conformance(name: str, case: Case, flavour: Callable[[str], Runtime]) -> None:
    runtime = flavour(name)
    if why := case.missing(runtime):
        pytest.skip(why)
    case.check(runtime)


def test_every_case_has_a_name_of_its_own() -> None:
    assert Counter(case.name for case in CASES).most_common(1)[0][1] == 1


def test_the_cases_that_are_named_exist() -> None:
    assert OF_EACH_SHELL | {case for _, case in KNOWN_FAILURES} <= {case.name for case in CASES}
