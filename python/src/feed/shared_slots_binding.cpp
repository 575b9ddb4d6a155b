#include "frameworks.hpp"
#include "interpreter_lock.hpp"
#include "move/engine.hpp"
#include "move/filled_slot.hpp"
#include "move/group.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/memory/shared_slots.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

// Unlocking memory waits for the device, whose work may need the interpreter.
std::shared_ptr<SharedSlots> owned(SharedSlots slots) {
  return {new SharedSlots(std::move(slots)), [](SharedSlots* gone) {
            const Unlocked unlocked;
            delete gone;
          }};
}

// The slot's bytes, which a worker process may write. None if it cannot have them now. The slots outlive it.
nb::object claim(SharedSlots& slots, std::size_t slot) {
  const std::span<std::byte> bytes = slots.claim(slot);
  if (bytes.empty()) return nb::none();
  constexpr int kWritable = 0x200;  // PyBUF_WRITE
  return nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(bytes.data()),
                                           static_cast<Py_ssize_t>(bytes.size()), kWritable));
}

// If the process forks, a child may read the slot, unless it is locked: its arrays are not handed out then.
FilledSlot take(SharedSlots& slots, std::size_t slot) {
  return {std::make_shared<SlotStorage>(slots.take(slot, true))};
}

void lock_soon(SharedSlots& slots, FilledSlot& filled, const Engine& engine) {
  filled.locked = slots.lock_soon(filled.storage->lease(), engine.device());
}

void end_locks(SharedSlots& slots) {
  const Unlocked unlocked;
  slots.end_locks();
}

nb::object array(const FilledSlot& slot, bool for_torch, std::size_t offset, std::uint8_t code,
                 std::uint8_t bits, const std::vector<std::int64_t>& shape,
                 const std::vector<std::int64_t>& strides) {
  if (offset >= slot.storage->lease().bytes().size() || shape.size() != strides.size()) {
    throw InvalidArgument("no such array lies in the slot");
  }
  const TensorView view{slot.storage,    slot.storage->data() + offset,           {},
                        {code, bits, 1}, static_cast<std::int32_t>(shape.size()), shape.data(),
                        strides.data()};
  return for_torch ? Torch::get()->make(view) : NumPy::get()->make(view);
}

}  // namespace

void bind_shared_slots(nb::module_& module) {
  nb::class_<FilledSlot>(module, "FilledSlot",
                         "A slot that a worker process has filled. It is free when its arrays are gone.")
      .def("array", &array, nb::arg("for_torch"), nb::arg("offset"), nb::arg("code"), nb::arg("bits"),
           nb::arg("shape"), nb::arg("strides"), "An array in the slot. `strides` in elements.")
      .def(
          "is_seen", [](const FilledSlot& self, const Flights& flights) { return flights.sees(self); },
          nb::arg("flights"), "True if arrays of the slot are left, other than those that are being sent.")
      .def_prop_ro(
          "locked", [](const FilledSlot& self) { return self.locked; },
          "True if the device reads the slot where it lies.");

  nb::class_<SharedSlots>(module, "SharedSlots", "Slots of shared memory that worker processes fill.")
      .def(nb::new_([](std::size_t slots, std::size_t most_bytes, int numa_node) {
             return owned(SharedSlots(slots, most_bytes, numa_node));
           }),
           nb::arg("slots"), nb::arg("most_bytes"), nb::arg("numa_node"))
      .def_static(
          "attach",
          [](int file, std::size_t slots, std::size_t most_bytes) {
            return owned(SharedSlots::attach(file, slots, most_bytes));
          },
          nb::arg("file"), nb::arg("slots"), nb::arg("most_bytes"))
      .def_prop_ro("file", &SharedSlots::file)
      .def_prop_ro("slots", &SharedSlots::slots)
      .def_prop_ro("most_bytes", &SharedSlots::most_bytes)
      .def("claim", &claim, nb::arg("slot"), nb::sig("def claim(self, slot: int) -> memoryview | None"))
      .def("give_up", &SharedSlots::give_up, nb::arg("slot"))
      .def("allow", &SharedSlots::allow, nb::arg("slot"), nb::arg("bytes"))
      .def("allowed", &SharedSlots::allowed, nb::arg("slot"))
      .def("take", &take, nb::arg("slot"))
      .def("return_lent", &SharedSlots::return_lent)
      .def_prop_ro("retired", &SharedSlots::retired)
      .def("lock_soon", &lock_soon, nb::arg("filled"), nb::arg("engine"),
           "Has the slot locked once the batch is gone. Says in `filled` whether it is locked already.")
      .def_prop_ro("why_not_locked", &SharedSlots::why_not_locked,
                   "Why a lock was refused; empty if none was.")
      .def("end_locks", &end_locks, "Waits for the lock that is being made, and makes none any more.")
      .def("reclaim", &SharedSlots::reclaim);

  module.def("forks_are_workers", &forks_are_workers, nb::arg("workers"),
             "Whether this thread forks workers from now on. Returns what it was before.");
  module.def(
      "host_memory_bytes", [] { return host_topology().memory_bytes; },
      "Memory of the host that this process may use.");
  module.def("free_host_memory_bytes", &free_host_memory,
             "Memory of the host that this process may still take, as its control groups allow.");
}

}  // namespace penstock::python
