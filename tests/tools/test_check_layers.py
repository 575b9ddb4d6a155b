import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "check_layers.py"


def run(files: dict[str, str]) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True, check=False)


class CheckLayers(unittest.TestCase):
    def accept(self, name: str, line: str) -> None:
        result = run({name: f"#pragma once\n{line}\n"})
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def refuse(self, name: str, line: str, reason: str) -> None:
        result = run({name: f"#pragma once\n{line}\n"})
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{name}:2:", result.stderr)
        self.assertIn(reason, result.stderr)

    def test_downward_edges_are_accepted(self):
        self.accept("include/penstock/memory/pool.hpp", "#include <penstock/device/device.hpp>")
        self.accept("src/transfer/staged.cpp", "#include <penstock/memory/pool.hpp>")
        self.accept("src/transfer/staged.cpp", '#include "transfer/staged.hpp"')
        self.accept("src/core/log.cpp", "#include <fmt/format.h>")
        self.accept("src/device/cuda/driver.cpp", "#include <dlfcn.h>")
        self.accept("src/device/cuda/driver.cpp", '#include "device/cuda/driver.hpp"')

    def test_upward_and_sideward_edges_are_refused(self):
        reason = "device may include core, not memory"
        self.refuse("include/penstock/device/device.hpp", "#include <penstock/memory/pool.hpp>", reason)
        self.refuse("src/device/host/stream.cpp", '#include "memory/pool_state.hpp"', reason)
        self.refuse("src/data/npy.cpp", "#include <penstock/device/device.hpp>", "data may include core, decode, not device")
        self.refuse("src/link/link.cpp", "#include <penstock/loader/loader.hpp>", "not loader")
        self.refuse("src/link/link.cpp", '#include "doctor/rules/findings.hpp"', "names no layer")
        self.refuse("src/link/link.cpp", '#include "cli/shared/output.hpp"', "names no layer")
        self.refuse("src/core/log.cpp", '  #  include "device/x.hpp"', "core may include no other layer, not device")

    def test_private_headers_of_another_layer_are_refused(self):
        self.refuse("src/transfer/staged.cpp", '#include "core/log_sink.hpp"', "private to core")
        self.refuse("src/memory/registration.cpp", '#include "device/host/mapping.hpp"', "private to device")

    def test_shared_headers_of_lower_layers_are_accepted(self):
        self.accept("src/transfer/staged.cpp", '#include "core/shared/pause.hpp"')
        self.accept("src/device/shared/peer_memory.hpp", '#include "core/shared/pause.hpp"')
        self.accept("src/device/cuda/driver.cpp", '#include "device/shared/mapping.hpp"')
        self.refuse("src/core/log.cpp", '#include "device/shared/mapping.hpp"', "core may include no other layer, not device")
        self.refuse("src/data/npy.cpp", '#include "memory/shared/pages.hpp"', "data may include core, decode, not memory")
        self.refuse("src/transfer/staged.cpp", '#include "device/host/shared/wire.hpp"', "private to device")

    def test_the_implementers_header_of_a_device_is_not_for_callers(self):
        include = "#include <penstock/device/backend.hpp>"
        self.accept("src/device/host/host_backend.hpp", include)
        self.accept("include/penstock/device/device.hpp", include)
        for name in ("src/memory/pool.cpp", "include/penstock/memory/pool.hpp", "cli/main.cpp", "python/src/a.cpp"):
            self.refuse(name, include, "those who implement a device")

    def test_the_recorder_has_no_code_of_the_library(self):
        places = "doctor/recorder/places.cpp"
        self.accept(places, '#include "doctor/read/recording_format.hpp"')
        self.accept(places, '#include "places.hpp"')
        self.accept(places, "#include <sys/mman.h>")
        for line in ("<penstock/core/error.hpp>", '"core/shared/pause.hpp"', '"doctor/read/recording.hpp"'):
            self.refuse(places, f"#include {line}", "no code of the library")

    def test_the_parts_of_the_doctor_build_on_each_other(self):
        self.accept("doctor/rules/findings.cpp", '#include "doctor/read/recording_format.hpp"')
        self.accept("doctor/rules/findings.cpp", "#include <penstock/transfer/link_profile.hpp>")
        self.accept("doctor/report/trace_report.cpp", '#include "cli/shared/terminal.hpp"')
        self.accept("doctor/report/trace_page.cpp", '#include "core/shared/printable.hpp"')
        self.accept("cli/shared/page.cpp", '#include "page_texts.hpp"')
        self.accept("doctor/tests/findings_test.cpp", '#include "doctor/rules/findings.hpp"')
        findings = '#include "doctor/rules/findings.hpp"'
        self.refuse("doctor/timeline/a.cpp", findings, "timeline may include no other part of the doctor, not rules")
        self.refuse("doctor/read/a.cpp", findings, "read may include timeline of the doctor, not rules")
        self.refuse("doctor/read/a.cpp", '#include "cli/shared/output.hpp"', "nothing else does")
        self.refuse("doctor/command/a.cpp", '#include "cli/commands.hpp"', "nothing else does")
        self.refuse("doctor/rules/a.cpp", "#include <penstock/loader/loader.hpp>", "does without loader")
        self.refuse("doctor/rules/a.cpp", '#include "transfer/staging.hpp"', "public headers only")
        self.refuse("doctor/rules/a.cpp", '#include "transfer/shared/copy_turns.hpp"', "public headers only")
        self.refuse("doctor/strange/a.cpp", "#include <vector>", "no part of the doctor")

    def test_paths_that_hide_the_layer_are_refused(self):
        self.refuse("src/device/a.cpp", '#include "../memory/pool_state.hpp"', "climbs out")
        self.refuse("src/device/a.cpp", '#include "neighbour.hpp"', "names no layer")
        self.refuse("src/strange/a.cpp", "#include <vector>", "is no layer")

    def test_public_headers_stay_light(self):
        for library in ("fmt/format.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "zlib.h"):
            self.refuse("include/penstock/core/a.hpp", f"#include <{library}>", "do without this library")
        self.refuse("include/penstock/core/a.hpp", '#include "core/pause.hpp"', "no private ones")
        self.refuse("include/penstock/core/a.hpp", '#include "core/shared/pause.hpp"', "no private ones")

    def test_the_command_and_the_package_include_public_headers_and_helpers_of_core(self):
        self.accept("cli/main.cpp", "#include <penstock/transfer/transfer_engine.hpp>")
        self.accept("cli/main.cpp", '#include "table.hpp"')
        self.accept("cli/main.cpp", "#include <CLI/CLI.hpp>")
        self.accept("cli/main.cpp", '#include "core/shared/printable.hpp"')
        self.accept("python/src/module.cpp", '#include "core/shared/start_thread.hpp"')
        for name in ("cli/main.cpp", "python/src/module.cpp"):
            self.refuse(name, '#include "core/pause.hpp"', "public headers only")
            self.refuse(name, '#include "device/shared/mapping.hpp"', "public headers only")

    def test_pythons_folders_may_be_named_like_layers(self):
        module = {"python/src/module.cpp": '#include "loader/native_loader.hpp"\n'}
        self.assertEqual(run(module | {"python/src/loader/native_loader.hpp": ""}).returncode, 0)
        self.assertIn("public headers only", run(module | {"src/loader/native_loader.hpp": ""}).stderr)

    def test_the_command_and_the_package_take_the_doctor_as_a_whole(self):
        whole = '#include "doctor/command/doctor_command.hpp"'
        self.accept("cli/run_command.cpp", whole)
        self.refuse("cli/run_command.cpp", '#include "doctor/rules/findings.hpp"', "doctor/command/ only")
        self.refuse("cli/shared/output.cpp", whole, "cli/shared nothing")
        self.refuse("python/src/module.cpp", whole, "run_command.hpp")

    def test_a_root_without_sources_is_refused(self):
        self.assertEqual(run({"readme.txt": "nothing to check"}).returncode, 1)

    def test_an_edge_planted_in_the_project_is_found(self):
        header = (ROOT / "include/penstock/core/error.hpp").read_text()
        planted = header.replace("#pragma once\n", "#pragma once\n#include <penstock/device/device.hpp>\n")
        self.assertNotEqual(header, planted)
        self.assertEqual(run({"include/penstock/core/error.hpp": header}).returncode, 0)
        result = run({"include/penstock/core/error.hpp": planted})
        self.assertEqual(result.returncode, 1)
        self.assertIn("include/penstock/core/error.hpp:2:", result.stderr)


if __name__ == "__main__":
    unittest.main()
