"""What failed in which pass of .ci/pytest: names, one a line; and junit.xml, of junit-first.xml and junit-again.xml.

A test that failed beside others and passed alone is a passed one in junit.xml, with its failure as `flakyFailure`: the
element that Maven's Surefire has for it, which CI servers show.
"""

import xml.etree.ElementTree as ET
from pathlib import Path

FIRST, AGAIN, RESULT = Path("junit-first.xml"), Path("junit-again.xml"), Path("junit.xml")


def failures(case: ET.Element) -> list[ET.Element]:
    """Return why a test case has failed."""
    return [child for child in case if child.tag in {"failure", "error"}]


def key(case: ET.Element) -> str:
    """Return module and test."""
    return f"{case.get('classname')}::{case.get('name')}"


def main() -> None:
    """Compare the passes, in the current directory."""
    first, again = ET.parse(FIRST), {}
    for case in ET.parse(AGAIN).iter("testcase") if AGAIN.exists() else ():
        again.setdefault(key(case), []).extend(failures(case))
    told = set()
    for suite in first.iter("testsuite"):
        for case in suite.iter("testcase"):
            name = key(case)
            if (found := failures(case)) and again.get(name) == []:
                told.add(f"FLAKY (failed beside others, passed alone) {name}")
                for failure in found:
                    failure.tag = "flakyFailure"
            elif found:
                told.add(f"FAILED {'twice' if name in again else 'once, and was not run again'} {name}")
        for tag, count in (("failure", "failures"), ("error", "errors")):
            suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    first.write(RESULT, encoding="utf-8", xml_declaration=True)
    print("\n".join(sorted(told, reverse=True)))


if __name__ == "__main__":
    main()
