"""Records all published bugs, compares each with its clean runs and prints the table.

python tests/e2e/published_bugs [NAMES] [--write-docs]"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import ROOT, WARM, Collector

from published_bugs.cases import CASES
from published_bugs.check import ask, record, root_of, verdict_of
from published_bugs.table import between_markers, tables


def parse() -> argparse.Namespace:
    known = [case.bug for case in CASES]
    parser = argparse.ArgumentParser(prog="published_bugs", description=__doc__)
    parser.add_argument("bugs", nargs="*", help=f"only these; known: {', '.join(known)}")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/layouts.md")
    parser.add_argument("--details", action="store_true", help="print what statctl diff prints, too")
    given = parser.parse_args()
    unknown = sorted(set(given.bugs) - set(known))
    if unknown:
        parser.error(f"unknown bugs: {', '.join(unknown)}; expected some of {', '.join(known)}")
    if given.write_docs and given.bugs:
        parser.error("--write-docs needs all bugs; leave out the names")
    return given


def main() -> int:
    given = parse()
    cases = [case for case in CASES if not given.bugs or case.bug in given.bugs]
    with tempfile.TemporaryDirectory(prefix="published-bugs-") as folder:
        collector = Collector(Path(folder) / "data").start()
        try:
            record(collector, cases, Path(folder))
            answers = [ask(collector, case) for case in cases]
            if given.details:
                for answer in answers:
                    if not (answer.quiet and answer.found):
                        print(
                            f"=== {answer.case.bug}: clean {verdict_of(answer.clean)}, root {root_of(answer.clean)}\n{answer.clean['notes']}"
                        )
                        print(collector.statctl("diff", answer.case.reference, answer.case.run).out)
        finally:
            collector.stop()
            WARM.close()
    text = tables(answers)
    print(text)
    if given.write_docs:
        between_markers(ROOT / "docs" / "layouts.md", text)
    return 0 if all(answer.quiet and answer.found for answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
