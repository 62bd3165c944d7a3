"""`python -m tests.runtime.matrix [SHELL]...`: every case of a shell, on images of `images/base/build shells`."""

from __future__ import annotations

import sys

import ohsandbox
from ohsandbox.testing.conformance import CASES, Case
from tests.runtime.test_conformance import KNOWN_FAILURES, OF_A_SHELL, RARE_SHELLS, SHELLS


def main(shells: list[str]) -> int:
    """Print a row for each case and a column for each shell; return 1 if one fails that is not known to."""
    cases = [case for case in CASES if any(hasattr(theme, case.name) for theme in OF_A_SHELL)]
    results = {}
    for shell in shells:
        with ohsandbox.DockerRuntime(f"ohsandbox-base:{shell}") as runtime:
            for case in cases:
                results[shell, case.name] = result = _result(shell, case, runtime)
                sys.stderr.write(f"{shell} {case.name}: {result}\n")
    rows = [["case", *(shell.removeprefix("shell-") for shell in shells)], ["---"] * (len(shells) + 1)]
    rows += [[case.name, *(results[shell, case.name] for shell in shells)] for case in cases]
    sys.stdout.writelines(f"| {' | '.join(row)} |\n" for row in rows)
    return int("FAIL" in results.values())


def _result(shell: str, case: Case, runtime: ohsandbox.DockerRuntime) -> str:
    if case.missing(runtime):
        return "-"
    try:
        case.check(runtime)
    except Exception:  # noqa: BLE001 - the table shows which
        return "known" if (shell, case.name) in KNOWN_FAILURES else "FAIL"
    return "ok"


if __name__ == "__main__":
    sys.exit(main([f"shell-{name}" for name in sys.argv[1:]] or [*SHELLS, *RARE_SHELLS]))
