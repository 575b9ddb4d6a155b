#include "move/parked_block.hpp"

#include "interpreter_lock.hpp"

#include <penstock/core/error.hpp>

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

}  // namespace

Passage::~Passage() {
  if (!memory_) return;
  const Unlocked unlocked;
  try {
    transfer_.synchronize();
  } catch (const std::exception&) {
    // A failed transfer no longer touches either end.
  }
  memory_.reset();
}

void Passage::wait() const {
  const Unlocked unlocked;
  transfer_.synchronize();
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

Passage ParkedBlock::copy(const std::vector<Piece>& pieces, CopyDirection direction) const {
  std::vector<TransferPiece> copies;
  for (const auto& [address, offset, bytes] : pieces) {
    auto* const on_device = reinterpret_cast<std::byte*>(address);
    std::byte* const on_host = memory_->data() + offset;
    const bool is_down = direction == CopyDirection::d2h;
    copies.push_back({is_down ? on_device : on_host, is_down ? on_host : on_device, bytes});
  }
  std::optional<Stream> current;
  if (Torch* const torch = engine_->is_cuda() ? Torch::get() : nullptr) {
    current = engine_->device().wrap_stream(torch->current_stream(engine_->index()));
  }
  const Unlocked unlocked;
  CopyOptions options;
  options.path = kind_ == MemoryKind::pinned ? TransferPath::direct : TransferPath::staged;
  options.source_kind = direction == CopyDirection::d2h ? MemoryKind::device : kind_;
  options.destination_kind = direction == CopyDirection::d2h ? kind_ : MemoryKind::device;
  options.after = current ? &*current : nullptr;
  return {engine_->engine()->copy_pieces(copies, direction, options), memory_};
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
      .def("up", &ParkedBlock::up, nb::arg("pieces"), "Copies pieces back to the device.");
}

}  // namespace penstock::python
