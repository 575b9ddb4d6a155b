#include "weight_load.hpp"

#include <penstock/core/error.hpp>
#include <penstock/loader/load_weights.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace penstock::python {
WeightLoad::WeightLoad(std::shared_ptr<Engine> engine, const std::vector<std::filesystem::path>& files,
                       const std::optional<std::vector<std::string>>& names)
    : engine_(std::move(engine)) {
  const nb::gil_scoped_release unlocked;
  files_ = open_weights(files, names);
}

WeightLoad::~WeightLoad() {
  cancel();
  const nb::gil_scoped_release unlocked;
  end_transfers();
}

std::vector<std::pair<std::string, std::string>> WeightLoad::opaque_types() const {
  std::vector<std::pair<std::string, std::string>> types;
  for (const WeightFile& file : files_) {
    for (const WeightTensor& tensor : file.tensors()) {
      if (tensor.is_opaque) types.emplace_back(tensor.name, tensor.type);
    }
  }
  return types;
}

std::shared_ptr<Storage> WeightLoad::host_memory(std::size_t bytes) const {
  const nb::gil_scoped_release unlocked;
  return std::make_shared<HostStorage>(bytes, *engine_->device().host_workers(), WeightFile::kAlignment);
}

void WeightLoad::start() {
  engine_->reap();
  TransferEngine& transfers = engine_->engine();
  const bool cuda = engine_->is_cuda();
  Torch* const torch = Torch::get();
  const StreamHandle current = cuda && torch != nullptr ? torch->current_stream(engine_->index()) : nullptr;
  for (const WeightFile& file : files_) {
    const std::size_t bytes = std::max(file.bytes(), WeightFile::kAlignment);
    blocks_.push_back(cuda ? engine_->allocate(bytes, torch != nullptr) : host_memory(bytes));
    // Made before anything is read: a library may refuse a type.
    for (const WeightTensor& tensor : file.tensors()) {
      std::byte* const at = blocks_.back()->data() + tensor.offset;
      results_[nb::str(tensor.name.data(), tensor.name.size())] =
          engine_->make(describe(tensor.dtype, tensor.shape), blocks_.back(), at, torch != nullptr);
    }
  }
  if (!cuda) return;
  const nb::gil_scoped_release unlocked;
  std::optional<Stream> after;
  if (torch != nullptr) after.emplace(engine_->device().wrap_stream(current));
  transfers_.reserve(files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i) {
    transfers_.push_back(
        load_weights(transfers, files_[i], blocks_[i]->data(), {.after = after ? &*after : nullptr}));
  }
}

void WeightLoad::wait() {
  const nb::gil_scoped_release unlocked;
  try {
    for (const Transfer& transfer : transfers_) transfer.synchronize();
    if (engine_->is_cuda()) return;
    const auto workers = engine_->device().host_workers();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      files_[i].read_all(*workers, {blocks_[i]->data(), files_[i].bytes()}, &stop_);
    }
  } catch (...) {
    cancel();
    end_transfers();
    throw;
  }
}

void WeightLoad::cancel() noexcept {
  stop_ = true;
  for (const Transfer& transfer : transfers_) transfer.cancel();
}

void WeightLoad::end_transfers() noexcept {
  for (const Transfer& transfer : transfers_) {
    try {
      transfer.synchronize();
    } catch (...) {  // it no longer touches its destination
    }
  }
}

nb::dict WeightLoad::finish() { return std::move(results_); }

void bind_weight_load(nb::module_& module) {
  nb::class_<WeightLoad>(module, "WeightLoad", "Loads .safetensors files to one device, in steps.")
      .def(nb::init<std::shared_ptr<Engine>, const std::vector<std::filesystem::path>&,
                    const std::optional<std::vector<std::string>>&>(),
           nb::arg("engine"), nb::arg("files"), nb::arg("names").none())
      .def("opaque_types", &WeightLoad::opaque_types,
           "The tensors that will be arrays of bytes, each with its type in the file.")
      .def("start", &WeightLoad::start, "Allocates the memory, makes the tensors, and begins to read.")
      .def("wait", &WeightLoad::wait, "Blocks until all bytes are in their place.")
      .def("cancel", &WeightLoad::cancel, "Has `wait` end soon.")
      .def("finish", &WeightLoad::finish, "The tensors by name; callable once, after `wait`.");
}

}  // namespace penstock::python
