#include "arrays.hpp"
#include "feed/feed_account.hpp"
#include "feed/tensor_watch.hpp"
#include "interpreter_lock.hpp"
#include "loader/file_field.hpp"
#include "loader/native_loader.hpp"
#include "loader/pictures.hpp"
#include "loader/sampler_state.hpp"
#include "loader/share_dataset.hpp"
#include "loader/torch_order.hpp"
#include "move/destination.hpp"
#include "move/engine.hpp"
#include "move/fetch.hpp"
#include "move/filled_slot.hpp"
#include "move/group.hpp"
#include "move/parked_block.hpp"
#include "move/pluggable_allocator.hpp"
#include "move/weight_load.hpp"
#include "move/weight_save.hpp"
#include "warnings.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/file_error.hpp>
#include <penstock/device/device.hpp>
#include <penstock/device/topology.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <run_command.hpp>

#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

nb::object make_error(const char* name, const Error& error) {
  return nb::module_::import_("penstock._errors").attr(name)(error.what());
}

void raise(const nb::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void translate(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const OutOfMemory& error) {
    const nb::object object = make_error("out_of_memory", error);
    object.attr("asked") = error.asked();
    object.attr("used") = error.used();
    object.attr("free") = error.free();
    raise(object);
  } catch (const DeviceError& error) {
    const nb::object object = make_error("DeviceError", error);
    object.attr("name") = error.name();
    object.attr("call") = error.call();
    object.attr("code") = error.code();
    raise(object);
  } catch (const FileError& error) {
    const auto make = nb::module_::import_("penstock._errors").attr("file_error");
    raise(make(error.what(), error.code(), std::filesystem::path(error.file())));
  } catch (const InvalidArgument& error) {
    raise(make_error("InvalidArgument", error));
  } catch (const Unsupported& error) {
    raise(make_error("Unsupported", error));
  } catch (const Closed& error) {
    raise(nb::module_::import_("penstock._engines").attr("closed")(error.what()));
  } catch (const Error& error) {
    raise(make_error("Error", error));
  }
}

void bind_devices(nb::module_& module) {
  nb::class_<DeviceInfo>(module, "DeviceInfo",
                         "A device of this machine.\n\n"
                         "Examples:\n"
                         "    >>> for device in penstock.devices():\n"
                         "    ...     name, size = device.spec, device.memory_bytes")
      .def_ro("spec", &DeviceInfo::spec, "The name that `device=` takes: \"cuda:0\", \"host\".")
      .def_ro("backend", &DeviceInfo::backend, "\"cuda\" or \"host\".")
      .def_ro("index", &DeviceInfo::index)
      .def_ro("name", &DeviceInfo::name, "\"NVIDIA H200\".")
      .def_ro("uuid", &DeviceInfo::uuid)
      .def_ro("driver", &DeviceInfo::driver,
              "The CUDA version that the driver supports; for the host, penstock's version.")
      .def_ro("pci_bus_id", &DeviceInfo::pci_bus_id)
      .def_ro("memory_bytes", &DeviceInfo::memory_bytes)
      .def_ro("numa_node", &DeviceInfo::numa_node, "-1: unknown or none.")
      .def("__repr__", [](const DeviceInfo& info) { return "<" + info.spec + ": " + info.name + ">"; });
  module.def(
      "inventory",
      [] {
        DeviceInventory inventory = Device::inventory();
        return std::pair(std::move(inventory.devices), std::move(inventory.missing));
      },
      "The devices of this machine, GPUs first, and a sentence for each that is missing.");
  module.def("share_processors", &share_processors, nb::arg("processes"),
             "Tells that so many processes of this host, with this one, move data at the same time.");
  module.def(
      "processors", [] { return host_topology().processors; }, "The processors that this process may use.");
}

}  // namespace
}  // namespace penstock::python

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace penstock::python;
  module.doc() = "The C++ side of penstock; `import penstock` instead.";
  module.attr("__version__") = PENSTOCK_VERSION;
  // Results may live on after the interpreter's end.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  pass_warnings_on(module);
  bind_devices(module);
  bind_arrays(module);
  bind_engine(module);
  bind_group(module);
  bind_destination(module);
  bind_fetch(module);
  bind_weight_load(module);
  bind_weight_save(module);
  bind_parked_block(module);
  bind_pluggable_allocator(module);
  bind_shared_slots(module);
  bind_statistics(module);
  bind_feed_account(module);
  bind_file_field(module);
  bind_pictures(module);
  bind_loader(module);
  bind_replay(module);
  bind_share_dataset(module);
  bind_sampler(module);
  bind_torch_order(module);
  bind_tensor_watch(module);
  module.def(
      "run_command",
      [](const std::vector<nb::bytes>& arguments, const std::filesystem::path& python) {
        std::vector<std::string> texts;
        for (const nb::bytes& argument : arguments) texts.emplace_back(argument.c_str(), argument.size());
        const Unlocked unlocked;
        return penstock::cli::run_command(texts, python.string());
      },
      nb::arg("arguments"), nb::arg("python"),
      "Runs the command, once in a process, and returns its exit status.");
}
