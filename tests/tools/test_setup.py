import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NEEDED = ("bash", "env", "sort", "head", "tail", "sed", "mktemp", "rm", "dirname", "make", "cat", "grep")

COMPILER_THAT_ACCEPTS = "#!/bin/sh\ncat >/dev/null\n"
CMAKE = "#!/bin/sh\necho cmake version {}\n"
ROOT_USER = "#!/bin/sh\necho 0\n"
ORDINARY_USER = "#!/bin/sh\necho 1000\n"


class Setup(unittest.TestCase):
    """Runs tools/setup.sh with only the test's own programs on PATH."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for command in NEEDED:
            (self.folder / command).symlink_to(shutil.which(command))
        self.put("c++", COMPILER_THAT_ACCEPTS)
        self.put("cmake", CMAKE.format("3.25.1"))
        self.put("id", ROOT_USER)

    def put(self, command: str, text: str) -> None:
        (self.folder / command).write_text(text)
        (self.folder / command).chmod(0o755)

    def put_apt_get(self, effect: str) -> None:
        self.put("apt-get", f'#!/bin/sh\necho "$@" >>{self.folder}/apt.log\n[ "$1" = update ] || {{ {effect}; }}\n')

    def run_setup(self, *groups: str) -> subprocess.CompletedProcess:
        environment = {"PATH": str(self.folder), "TMPDIR": str(self.folder), "CXX": "c++"}
        return subprocess.run([self.folder / "bash", ROOT / "tools/setup.sh", *groups], env=environment,
                              capture_output=True, text=True, check=False)

    def apt_log(self) -> str:
        log = self.folder / "apt.log"
        return log.read_text() if log.exists() else ""

    def test_what_is_there_is_not_installed_again(self):
        self.put_apt_get("true")
        result = self.run_setup("build", "test")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(self.apt_log(), "")

    def test_only_what_is_missing_is_installed(self):
        installed = self.folder / "installed"
        self.put("c++", f"#!/bin/sh\nif grep -q -e CLI/ -e zlib; then test -e {installed}; fi\n")
        self.put_apt_get(f": >{installed}")
        result = self.run_setup("build")
        self.assertEqual(result.returncode, 0, result.stderr)
        update, install = self.apt_log().splitlines()
        self.assertIn("update", update)
        self.assertEqual(install.split("--no-install-recommends")[1].split(), ["libcli11-dev", "zlib1g-dev"])

    def test_a_user_who_may_not_install_is_told_what_to_type(self):
        self.put("cmake", CMAKE.format("3.22.4"))
        self.put("id", ORDINARY_USER)
        self.put_apt_get("true")
        result = self.run_setup("build")
        self.assertEqual(result.returncode, 1)
        self.assertIn("  CMake 3.25 or newer\nInstall them with: sudo apt-get install cmake\n", result.stderr)
        self.assertEqual(self.apt_log(), "")

    def test_a_failing_apt_get_is_reported_with_what_is_missing(self):
        (self.folder / "cmake").unlink()
        self.put_apt_get("echo no network >&2; exit 100")
        result = self.run_setup("build")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no network", result.stderr)
        self.assertIn("CMake 3.25 or newer", result.stderr)

    def test_a_package_that_is_too_old_is_reported(self):
        self.put("cmake", CMAKE.format("3.22.4"))
        self.put_apt_get("true")
        result = self.run_setup("build")
        self.assertEqual(result.returncode, 1)
        self.assertIn("Still missing after apt-get install", result.stderr)
        self.assertIn("CMake 3.25 or newer", result.stderr)

    def test_without_apt_get_it_stops(self):
        self.put("c++", "#!/bin/sh\ncat >/dev/null\nexit 1\n")
        result = self.run_setup("test")
        self.assertEqual(result.returncode, 1)
        self.assertIn("GoogleTest", result.stderr)
        self.assertIn("libgtest-dev libgmock-dev", result.stderr)

    def test_a_build_goes_on_without_what_is_optional(self):
        self.put("c++", "#!/bin/sh\n! grep -q -e jpeglib -e spng -e webp\n")
        for user in (ORDINARY_USER, ROOT_USER):
            self.put("id", user)
            self.put_apt_get("exit 100")
            result = self.run_setup("build")
            self.assertEqual(result.returncode, 0)
            self.assertIn("libjpeg-turbo", result.stderr)
            self.assertIn("sudo apt-get install libjpeg-dev libspng-dev libwebp-dev", result.stderr)

    def test_an_unknown_group_is_an_error(self):
        self.assertEqual(self.run_setup("biuld").returncode, 2)


if __name__ == "__main__":
    unittest.main()
