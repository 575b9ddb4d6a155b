import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "summarize_tests.py"

PASSED = '<testcase classname="Cuda/Contract" name="copies" status="run"/>'
SKIPPED = '<testcase classname="Cuda/Contract" name="locks" status="run"><skipped message="no"/></testcase>'
FAILED = (
    '<testcase classname="Host/Contract" name="waits" status="fail"><failure/>'
    "<system-out>the wait was gone</system-out></testcase>"
)
OTHER = '<testcase classname="Host/Contract" name="fills" status="run"/>'
NOT_RUN = '<testcase classname="Host/Contract" name="frees" status="notrun"/>'


def output_of(*cases: str, options: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "results.xml")
        file.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
        result = subprocess.run([sys.executable, TOOL, *options, file], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout.splitlines()


def run(*cases: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    status, lines = output_of(*cases, options=options)
    return status, lines[-1]


class SummarizeTests(unittest.TestCase):
    def test_outcomes_are_counted(self):
        self.assertEqual(run(PASSED, OTHER, SKIPPED, NOT_RUN), (0, "2 passed, 0 failed, 2 skipped"))
        self.assertEqual(run(PASSED, FAILED), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_failure_is_shown_with_its_output(self):
        lines = output_of(PASSED, FAILED)[1]
        self.assertTrue(lines[0].startswith("FAILED: Host/Contract.waits ("), lines)
        self.assertEqual(lines[1:], ["    the wait was gone", "1 passed, 1 failed, 0 skipped"])

    def test_a_program_counts_by_its_tests(self):
        passed = '<testcase classname="program/core-1" name="program/core-1" status="run"/>'
        failed = '<testcase classname="program/core-2" name="program/core-2" status="fail"><failure/></testcase>'
        self.assertEqual(run(PASSED, passed), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertEqual(run(PASSED, passed, failed), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_program_that_hung_shows_where(self):
        printed = "[----------] 2 tests\n[ RUN      ] A.passes\n[       OK ] A.passes (1 ms)\n[ RUN      ] A.hangs\n"
        hung = '<testcase classname="program/core-1" name="program/core-1" status="fail"><failure/>'
        lines = output_of(PASSED, f"{hung}<system-out>{printed}</system-out></testcase>")[1]
        self.assertEqual(lines[1:], ["    [ RUN      ] A.hangs", "1 passed, 1 failed, 0 skipped"])

    def test_no_tests_at_all_is_a_failure(self):
        self.assertEqual(run()[0], 1)
        self.assertEqual(run(SKIPPED)[0], 1)

    def test_tests_that_must_run(self):
        must_run = ("--must-run", "^Cuda/")
        self.assertEqual(run(PASSED, OTHER, options=must_run)[0], 0)
        self.assertEqual(run(OTHER, options=must_run)[0], 1)
        self.assertEqual(run(PASSED, SKIPPED, options=must_run)[0], 1)

    def test_tests_that_may_be_skipped_for_a_reason(self):
        for reason, status in (("^n", 0), ("yes", 1)):
            self.assertEqual(run(PASSED, SKIPPED, options=("--must-run", "^Cuda/", "--but-for", reason))[0], status)
        self.assertEqual(run(SKIPPED, OTHER, options=("--must-run", "^Cuda/", "--but-for", "no"))[0], 1)


if __name__ == "__main__":
    unittest.main()
