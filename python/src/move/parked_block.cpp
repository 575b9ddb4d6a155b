#include "move/parked_block.hpp"

#include "interpreter_lock.hpp"

#include <penstock/core/error.hpp>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <optional>

namespace penstock::python {

namespace {

/// The memory of a Python object.
class BufferStorage final : public Storage {
 public:
  explicit BufferStorage(const nb::object& object) : object_(keep_alive(object)) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_WRITABLE) != 0) nb::raise_python_error();
    data_ = static_cast<std::byte*>(buffer.buf);
    PyBuffer_Release(&buffer);
  }

 private:
  const std::shared_ptr<const void> object_;
};

// What PyTorch's current stream does comes first. None: there is nothing of PyTorch's on the device.
std::optional<Stream> current_stream(const Engine& engine) {
  Torch* const torch = engine.is_cuda() ? Torch::get() : nullptr;
  if (torch == nullptr) return std::nullopt;
  return engine.device().wrap_stream(torch->current_stream(engine.index()));
}

}  // namespace

Passage::~Passage() {
  if (!memory_) return;
  const Unlocked unlocked;
  for (const Transfer& transfer : transfers_) {
    try {
      transfer.synchronize();
    } catch (const std::exception&) {
      // A failed transfer no longer touches either end.
    }
  }
  memory_.reset();
}

void Passage::wait() const {
  const Unlocked unlocked;
  for (const Transfer& transfer : transfers_) transfer.synchronize();
}

ParkedBlock::ParkedBlock(std::shared_ptr<Engine> engine, std::size_t bytes, bool pinned)
    : engine_(std::move(engine)), kind_(pinned ? MemoryKind::pinned : MemoryKind::pageable) {
  engine_->refuse_closed();
  memory_ = pinned ? engine_->allocate_pinned(bytes) : engine_->allocate_on_host(bytes);
}

ParkedBlock::ParkedBlock(std::shared_ptr<Engine> engine, const nb::object& buffer)
    : engine_(std::move(engine)), kind_(MemoryKind::pageable) {
  engine_->refuse_closed();
  memory_ = std::make_shared<BufferStorage>(buffer);
}

Passage ParkedBlock::copy(const std::vector<Piece>& pieces, CopyDirection direction, Group* group) const {
  const std::optional<Stream> current = current_stream(*engine_);
  const Stream* const after = current ? &*current : nullptr;
  const auto engine = engine_->engine();
  const auto relays = group != nullptr ? group->engine() : nullptr;
  Passage passage(memory_);
  const Unlocked unlocked;
  std::vector<TransferPiece> copies;
  for (const auto& [address, offset, bytes] : pieces) {
    auto* const on_device = reinterpret_cast<std::byte*>(address);
    std::byte* const on_host = memory_->data() + offset;
    if (relays && bytes >= kLeastInGroup) {
      passage.add(relays->relay(0, on_device, on_host, bytes, {.source_kind = kind_, .after = {after}}));
      continue;
    }
    const bool is_down = direction == CopyDirection::d2h;
    copies.push_back({is_down ? on_device : on_host, is_down ? on_host : on_device, bytes});
  }
  CopyOptions options;
  options.path = kind_ == MemoryKind::pinned ? TransferPath::direct : TransferPath::staged;
  options.source_kind = direction == CopyDirection::d2h ? MemoryKind::device : kind_;
  options.destination_kind = direction == CopyDirection::d2h ? kind_ : MemoryKind::device;
  options.after = after;
  passage.add(engine->copy_pieces(copies, direction, options));
  return passage;
}

std::vector<nb::bytes> hash_pieces(const std::shared_ptr<Engine>& engine,
                                   const std::vector<std::pair<std::uintptr_t, std::size_t>>& pieces) {
  engine->refuse_closed();
  std::size_t count = 0;
  for (const auto& [address, bytes] : pieces) count += HashRequest::sum_count(bytes);
  const auto memory = engine->allocate_pinned(count * sizeof(HashSum));
  std::optional<Stream> stream = current_stream(*engine);
  std::vector<HashSum> hashes;
  {
    const Unlocked unlocked;
    if (!stream) stream = engine->device().create_stream();
    auto* sums = static_cast<HashSum*>(engine->device().device_address(memory->data()));
    for (const auto& [address, bytes] : pieces) {
      stream->hash({.source = reinterpret_cast<const void*>(address), .bytes = bytes, .sums = sums});
      sums += HashRequest::sum_count(bytes);
    }
    stream->synchronize();
    const auto* part = reinterpret_cast<const HashSum*>(memory->data());
    for (const auto& [address, bytes] : pieces) {
      HashSum& whole = hashes.emplace_back();
      for (std::size_t left = HashRequest::sum_count(bytes); left > 0; --left, ++part) {
        whole.low += part->low;
        whole.high += part->high;
      }
    }
  }
  std::vector<nb::bytes> results;
  for (const HashSum& hash : hashes) results.emplace_back(static_cast<const void*>(&hash), sizeof hash);
  return results;
}

void bind_parked_block(nb::module_& module) {
  nb::class_<Passage>(module, "Passage", "Bytes on their way into a ParkedBlock or out of it.")
      .def("wait", &Passage::wait, "Blocks until all bytes are there.");

  nb::class_<ParkedBlock>(module, "ParkedBlock", "Memory of the host for bytes of a device's tensors.")
      .def(nb::init<std::shared_ptr<Engine>, std::size_t, bool>(), nb::arg("engine"), nb::arg("bytes"),
           nb::arg("pinned"))
      .def(nb::init<std::shared_ptr<Engine>, const nb::object&>(), nb::arg("engine"), nb::arg("buffer"),
           "In a writable buffer, which it keeps.")
      .def("down", &ParkedBlock::down, nb::arg("pieces"),
           "Copies pieces into the block: (address on the device, offset in the block, bytes).")
      .def("up", &ParkedBlock::up, nb::arg("pieces"), nb::arg("group").none() = nb::none(),
           "Copies pieces back to the device: the group's first, over the links of all.");

  module.def("hash_pieces", &hash_pieces, nb::arg("engine"), nb::arg("pieces"),
             "Hashes of 16 bytes of memory of the device: pieces of (address, a multiple of 16; bytes).");
}

}  // namespace penstock::python
