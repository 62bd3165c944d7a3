"""What every `Runtime` owes, as cases that any backend can be held to.

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_conformance(case: Case, my_runtime: Runtime) -> None:
        if why := case.missing(my_runtime):
            pytest.skip(why)
        case.check(my_runtime)

One started runtime serves all of them. They need no pytest.
"""

from ohsandbox.testing.conformance import (
    run,
    sessions,
    shell_interactive,
    shell_output,
    shell_recovery,
    shell_state,
)
from ohsandbox.testing.conformance.case import CASES, Case, Session, case, shell_case

__all__ = ["CASES", "Case", "Session", "case", "run", "sessions", "shell_case", "shell_interactive", "shell_output", "shell_recovery", "shell_state"]
