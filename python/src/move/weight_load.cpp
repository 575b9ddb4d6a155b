#include "move/weight_load.hpp"

#include "interpreter_lock.hpp"

#include <penstock/core/error.hpp>
#include <penstock/loader/fill_ranks.hpp>
#include <penstock/loader/load_weights.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>

namespace penstock::python {

WeightLoad::WeightLoad(EngineDestination destination, const std::vector<std::filesystem::path>& files,
                       const std::optional<std::vector<std::string>>& names,
                       const std::map<std::string, WeightRows>& rows)
    : destination_(std::move(destination)), blocks_(destination_.engines().size()) {
  results_.resize(blocks_.size());
  const Unlocked unlocked;
  files_ = open_weights(files, names, rows);
}

WeightLoad::~WeightLoad() {
  cancel();
  const Unlocked unlocked;
  end_transfers();
}

std::vector<WeightTensor> WeightLoad::opaque() const {
  std::vector<WeightTensor> found;
  for (const WeightFile& file : files_) {
    std::ranges::copy_if(file.tensors(), std::back_inserter(found),
                         [](const WeightTensor& tensor) { return !tensor.dtype; });
  }
  return found;
}

void WeightLoad::start() {
  Torch* const torch = Torch::get();
  std::vector<StreamHandle> current;
  const auto& engines = destination_.engines();
  for (std::size_t i = 0; i < engines.size(); ++i) {
    Engine& engine = *engines[i];
    engine.reap();
    engine.refuse_closed();
    if (engine.is_cuda() && torch != nullptr) current.push_back(torch->current_stream(engine.index()));
    make_tensors(i, torch);
  }
  if (stays_on_host()) return;
  const Unlocked unlocked;
  for (std::size_t i = 0; i < current.size(); ++i) {
    streams_.push_back(engines[i]->device().wrap_stream(current[i]));
  }
  if (!destination_.rank()) send_all();
}

void WeightLoad::send_all() {
  std::vector<const Stream*> after;
  for (const Stream& stream : streams_) after.push_back(&stream);
  transfers_.reserve(files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i) transfers_.push_back(send(i, after));
}

bool WeightLoad::fill_with_ranks() const {
  const Unlocked unlocked;
  std::string facts = "it loads tensors";
  std::vector<FilledBlock> blocks;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const WeightFile& file = files_[i];
    facts += " of a file:";
    for (const WeightTensor& tensor : file.tensors()) {
      facts += " " + tensor.name + " " + tensor.type;
      for (const std::size_t extent : tensor.shape) facts += " " + std::to_string(extent);
      facts += ";";
    }
    blocks.push_back({blocks_.front()[i]->data(), file.bytes(),
                      [file](std::size_t offset, std::span<std::byte> bytes) { file.read(offset, bytes); }});
  }
  bool filled = false;
  destination_.rank()->group->use(
      [&](ProcessBoard& board) {
        filled = fill_ranks(destination_.engine().device(), board, facts, std::move(blocks),
                            {.after = streams_.empty() ? nullptr : &streams_.front(),
                             .profile = destination_.rank()->profile()});
      },
      [this] {
        if (stop_) throw Closed("loading was stopped");
      });
  return filled;
}

void WeightLoad::make_tensors(std::size_t device, Torch* torch) {
  for (const WeightFile& file : files_) {
    const std::size_t bytes = std::max(file.bytes(), WeightFile::kAlignment);
    Engine& engine = *destination_.engines()[device];
    const auto block = stays_on_host() ? engine.allocate_on_host(bytes, WeightFile::kAlignment)
                                       : engine.allocate(bytes, torch != nullptr);
    blocks_[device].push_back(block);
    // Made before anything is read: a library may refuse a type.
    for (const WeightTensor& tensor : file.tensors()) {
      const Leaf leaf =
          tensor.dtype ? describe(*tensor.dtype, tensor.shape) : describe(DType::uint8, {tensor.bytes});
      results_[device][nb::str(tensor.name.data(), tensor.name.size())] =
          engine.make(leaf, block, block->data() + tensor.offset, torch != nullptr);
    }
  }
}

std::uint64_t WeightLoad::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const WeightFile& file : files_) sum += file.tensor_bytes();
  return sum;
}

std::uint64_t WeightLoad::bytes_read() const noexcept {
  std::uint64_t sum = 0;
  for (const WeightFile& file : files_) {
    const WeightReads reads = file.reads();
    sum += reads.cached + reads.direct + reads.buffered;
  }
  return sum;
}

Transfer WeightLoad::send(std::size_t file, const std::vector<const Stream*>& after) const {
  const auto& group = destination_.group();
  if (!group) {
    return load_weights(*destination_.engine().engine(), files_[file], blocks_.front()[file]->data(),
                        {.after = after.empty() ? nullptr : after.front()});
  }
  std::vector<std::byte*> destinations;
  for (const Blocks& blocks : blocks_) destinations.push_back(blocks[file]->data());
  return destinations.size() == group->devices().size()
             ? load_weights(*group->engine(), files_[file], destinations, {.after = after})
             : load_weights(*group->engine(), 0, files_[file], destinations.front(), {.after = after});
}

void WeightLoad::wait() {
  const Unlocked unlocked;
  try {
    for (const Transfer& transfer : transfers_) transfer.synchronize();
    if (!stays_on_host()) return;
    const auto workers = destination_.engine().device().host_workers();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      files_[i].read_all(*workers, {blocks_.front()[i]->data(), files_[i].bytes()}, &stop_);
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

std::vector<nb::dict> WeightLoad::finish() { return std::move(results_); }

void bind_weight_load(nb::module_& module) {
  nb::class_<WeightTensor>(module, "WeightTensor", "A tensor of a .safetensors file.")
      .def_ro("name", &WeightTensor::name)
      .def_ro("type", &WeightTensor::type, "As the file writes it.")
      .def_ro("shape", &WeightTensor::shape)
      .def_ro("nbytes", &WeightTensor::bytes);
  nb::class_<WeightRows>(module, "WeightRows", "A range of a tensor's first axis, as a slice.")
      .def(nb::init<std::optional<std::int64_t>, std::optional<std::int64_t>>(), nb::arg("begin").none(),
           nb::arg("end").none());
  nb::class_<WeightFile>(module, "WeightFile", "The header of a .safetensors file, which stays open.")
      .def_prop_ro("path", [](const WeightFile& self) { return std::filesystem::path(self.name()); })
      .def_prop_ro("tensors", &WeightFile::tensors, "In the order of the file.")
      .def_prop_ro("metadata", &WeightFile::metadata);
  module.def("read_weight_headers", &read_weight_headers, nb::arg("files"), nb::call_guard<Unlocked>(),
             "Reads no tensor.");
  nb::class_<WeightLoad>(module, "WeightLoad", "Loads .safetensors files to devices, in steps.")
      .def(nb::init<EngineDestination, const std::vector<std::filesystem::path>&,
                    const std::optional<std::vector<std::string>>&,
                    const std::map<std::string, WeightRows>&>(),
           nb::arg("destination"), nb::arg("files"), nb::arg("names").none() = nb::none(),
           nb::arg("rows") = std::map<std::string, WeightRows>())
      .def("opaque", &WeightLoad::opaque,
           "The tensors that will be arrays of bytes, along one axis: those of a type that has no DType.")
      .def_prop_ro("nbytes", &WeightLoad::bytes, "Bytes of all tensors to load.")
      .def_prop_ro("bytes_read", &WeightLoad::bytes_read, "Bytes that this process has read so far.")
      .def("start", &WeightLoad::start, "Allocates the memory, makes the tensors, and begins to read.")
      .def("fill_with_ranks", &WeightLoad::fill_with_ranks,
           "Blocks until all bytes are in their place, in all processes. False: call `send_all`.")
      .def("send_all", &WeightLoad::send_all, nb::call_guard<Unlocked>(),
           "Begins to read, for this process alone.")
      .def("wait", &WeightLoad::wait, "Blocks until all bytes are in their place.")
      .def("cancel", &WeightLoad::cancel, "Has `wait` end soon.")
      .def("finish", &WeightLoad::finish,
           "The tensors by name, of each device; callable once, after `wait`.");
}

}  // namespace penstock::python
