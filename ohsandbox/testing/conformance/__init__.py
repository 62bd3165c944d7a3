"""What every `Runtime` owes, as cases that any backend can be held to.

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_conformance(case: Case, my_runtime: Runtime) -> None:
        if why := case.missing(my_runtime):
            pytest.skip(why)
        case.check(my_runtime)

One started runtime serves all of them. They need no pytest; where it is, name this package to
`pytest.register_assert_rewrite` and a failure shows its values. `Case.missing` is why a sandbox cannot be asked.
"""

from ohsandbox.testing.conformance import (
    execute_calls,
    files,
    ports,
    run,
    run_calls,
    sessions,
    shell_interactive,
    shell_output,
    shell_recovery,
    shell_state,
    tools,
    trees,
)
from ohsandbox.testing.conformance.case import CASES, Case, Session, add_theme, case, shell_case

THEMES = (
    run, run_calls, sessions, shell_state, shell_output, shell_interactive, shell_recovery, execute_calls,
    files, trees, tools, ports,
)  # fmt: skip
"""The modules of cases, in the order in which to read them."""

for _theme in THEMES:
    add_theme(_theme)

__all__ = ["CASES", "THEMES", "Case", "Session", "case", "shell_case"]
