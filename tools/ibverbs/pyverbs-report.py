"""Runs rdma-core's tests and tells what became of each, and why some were skipped.

    pyverbs-report.py [--gid N] [--dev NAME] [TEST...]     # what the suite takes; unittest's names of tests
"""

import collections
import faulthandler
import os
import sys
import unittest

# The suite is a folder of modules that name each other with and without it.
sys.path.insert(0, "tests")
from args_parser import parser

# As many as a soft NIC must pass; the kernel's rxe passes 86.
ENOUGH = 140


# Without it, every test of the connection manager fails.
CONNECTION_MANAGER = "/dev/infiniband/rdma_cm"


def each(suite):
    """The tests of a suite, and of those in it."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


class Result(unittest.TextTestResult):
    """Remembers what passed."""

    def __init__(self, *args):
        super().__init__(*args)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)


def main():
    # A crash says where.
    faulthandler.enable()
    # The suite reads its own arguments, and leaves the others.
    parser.parse_args()
    names = sys.argv[1:]
    import tests

    loader = unittest.TestLoader()
    if names:
        suite = loader.loadTestsFromNames([f"tests.{name.removeprefix('tests.')}" for name in names])
    else:
        suite = loader.loadTestsFromModule(tests)
    if not os.path.exists(CONNECTION_MANAGER):
        for test in each(suite):
            if ".test_rdmacm." in test.id():
                unittest.skip(f"there is no {CONNECTION_MANAGER}")(type(test))
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result, stream=sys.stderr).run(suite)
    reasons = collections.Counter()
    for test, reason in result.skipped:
        vendor = "mlx5" in test.id() or "efa" in test.id()
        reasons["(mlx5 and EFA only)" if vendor else f"{test.id()}: {reason}"] += 1
    for reason, count in sorted(reasons.items()):
        print(f"skipped {count:3}  {reason}")
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun} tests: {len(result.passed)} passed, {bad} failed, {len(result.skipped)} skipped")
    enough = names or len(result.passed) >= ENOUGH
    return 0 if not bad and result.passed and enough else 1


if __name__ == "__main__":
    sys.exit(main())
