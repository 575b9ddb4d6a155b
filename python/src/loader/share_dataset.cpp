#include "loader/share_dataset.hpp"

#include "frameworks.hpp"
#include "interpreter_lock.hpp"
#include "loader/native_loader.hpp"
#include "signals.hpp"
#include "storage.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/open_dataset.hpp>
#include <penstock/loader/share_dataset.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

// Pages that other processes have too. They go with the last of the arrays over them.
class PagesStorage final : public Storage {
 public:
  explicit PagesStorage(std::shared_ptr<const CommonPages> pages) noexcept : pages_(std::move(pages)) {
    data_ = pages_->pages->bytes().data();
  }

 private:
  std::shared_ptr<const CommonPages> pages_;
};

struct SharedFields {
  SharedDataset shared;
  std::shared_ptr<Storage> storage;
};

// `make` gives a note, and arrays by name or the paths of files.
using Made = std::tuple<nb::bytes, NativeLoader::Arrays, std::vector<std::filesystem::path>>;

MadeDataset call_make(const nb::callable& make) {
  const Locked locked;
  const auto [note, arrays, paths] = nb::cast<Made>(stay_if_ended(make));
  std::string text(note.c_str(), note.size());
  if (paths.empty()) return {make_dataset(arrays), std::move(text)};
  const Unlocked unlocked;
  return {open_dataset(paths, {.load_limit = 0}), std::move(text)};
}

SharedFields share_fields(const std::string& key, std::size_t processes, const nb::callable& make) {
  const Unlocked unlocked;
  SharedDataset shared = share_dataset({.key = key, .processes = processes, .while_waiting = &hear_signals},
                                       [&] { return call_make(make); });
  auto storage = std::make_shared<PagesStorage>(shared.pages);
  return {std::move(shared), std::move(storage)};
}

nb::object shared_array(const SharedFields& fields, std::size_t field, bool for_torch) {
  const Dataset& dataset = fields.shared.dataset;
  Shape shape = dataset.field(field).shape;
  shape.insert(shape.begin(), static_cast<std::size_t>(dataset.sample_count()));
  auto* const at = const_cast<std::byte*>(dataset.memory(field).data());
  return make_on_host(describe(dataset.field(field).dtype, shape), fields.storage, at, for_torch);
}

}  // namespace

void bind_share_dataset(nb::module_& module) {
  nb::class_<SharedFields>(module, "SharedFields", "Fields in pages that other processes have too.")
      .def_prop_ro(
          "fields",
          [](const SharedFields& self) {
            std::vector<std::pair<std::string, std::string>> fields;
            for (std::size_t f = 0; f < self.shared.dataset.field_count(); ++f) {
              const Field& field = self.shared.dataset.field(f);
              fields.emplace_back(field.name, dtype_name(field.dtype));
            }
            return fields;
          },
          "The name and the dtype of each.")
      .def_prop_ro("note",
                   [](const SharedFields& self) {
                     return nb::bytes(self.shared.note.data(), self.shared.note.size());
                   })
      .def_prop_ro("made_here", [](const SharedFields& self) { return self.shared.pages->made_here; })
      .def_prop_ro("nbytes",
                   [](const SharedFields& self) { return self.shared.pages->pages->bytes().size(); })
      .def("array", &shared_array, nb::arg("field"), nb::arg("for_torch"),
           "All samples of a field, of which the array keeps the memory.");
  module.def("share_dataset", &share_fields, nb::arg("key"), nb::arg("processes"), nb::arg("make"),
             "Calls `make` in the first process that comes, for a note, arrays by name, and paths of files "
             "in place of arrays. Blocks, and hears signals meanwhile.");
}

}  // namespace penstock::python
