#include "arrays.hpp"

#include "interpreter_lock.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

namespace penstock::python {
namespace {

// A stream, named in DLPack's way: the driver's handle, or 1 for the legacy default stream (handle null).
struct ConsumerStream {
  StreamHandle handle = nullptr;
  bool unnamed = false;  // -1: the consumer orders its work by itself
};

ConsumerStream parse_stream(nb::handle stream) {
  const auto value = stream.is_none() ? std::int64_t{1} : nb::cast<std::int64_t>(stream);
  if (value == 0 || value < -1) throw nb::value_error("__dlpack__: pass the handle of a CUDA stream");
  if (value <= 1) return {nullptr, value == -1};
  return {reinterpret_cast<StreamHandle>(static_cast<std::intptr_t>(value))};
}

nb::object to_dlpack(const DeviceArray& array, nb::handle stream, nb::handle max_version, nb::handle device,
                     nb::handle copy) {
  const auto& leaf = array.leaf;
  if (!device.is_none() &&
      nb::cast<std::pair<int, int>>(device) != std::pair<int, int>(leaf.device.type, leaf.device.index)) {
    throw nb::buffer_error("__dlpack__: the array stays on its device; see penstock.to_host");
  }
  if (!copy.is_none() && nb::cast<bool>(copy)) throw nb::buffer_error("__dlpack__: does not copy");
  const ConsumerStream consumer = parse_stream(stream);
  {
    const Unlocked unlocked;
    if (consumer.unnamed) array.storage->synchronize();
    array.storage->hand_to(consumer.handle);
  }
  const TensorView view = leaf.view(array.storage, const_cast<std::byte*>(leaf.data), leaf.device);
  if (!max_version.is_none() && nb::cast<int>(max_version[0]) >= 1) {
    return make_capsule(make_managed(view));
  }
  return make_capsule(make_legacy_managed(view));
}

std::string dtype_of(const DeviceArray& array) { return array.leaf.dtype_name(); }

nb::dict cuda_array_interface(const DeviceArray& array) {
  const auto& leaf = array.leaf;
  const char* kinds = "iuf?Vcb";
  if (leaf.dtype.code > 6 || kinds[leaf.dtype.code] == '?' || leaf.dtype.code == dlpack::kBfloat) {
    throw nb::attribute_error("__cuda_array_interface__ has no name for this dtype; use DLPack");
  }
  const auto item_bytes = leaf.dtype.bits / 8;
  nb::list strides;
  for (std::int32_t axis = 0; axis < leaf.ndim(); ++axis) strides.append(leaf.strides()[axis] * item_bytes);
  {
    const Unlocked unlocked;
    array.storage->synchronize();
    array.storage->hand_to(nullptr);
  }
  nb::dict answer;
  answer["shape"] = shape_of(leaf);
  answer["typestr"] = (item_bytes == 1 ? "|" : "<") +
                      std::string(1, leaf.dtype.code == dlpack::kBool ? 'b' : kinds[leaf.dtype.code]) +
                      std::to_string(item_bytes);
  answer["data"] = nb::make_tuple(reinterpret_cast<std::uintptr_t>(leaf.data), false);
  answer["strides"] = nb::tuple(strides);
  answer["version"] = 3;
  return answer;
}

}  // namespace

bool read_array(Leaf& leaf, PyObject* object) {
  const nb::handle handle(object);
  if (!nb::isinstance<DeviceArray>(handle)) return false;
  leaf = nb::cast<const DeviceArray&>(handle).leaf;
  leaf.framework = Framework::penstock;
  leaf.source = nb::borrow(object);
  return true;
}

nb::object make_array(std::shared_ptr<DeviceStorage> storage, Leaf leaf, const std::byte* at,
                      dlpack::Device on) {
  leaf.source = {};
  leaf.data = at;
  leaf.device = on;
  return nb::cast(DeviceArray{std::move(storage), std::move(leaf)});
}

void bind_arrays(nb::module_& module) {
  nb::class_<DeviceArray>(
      module, "Array",
      "An array on a GPU, which penstock returns if PyTorch is not imported. CuPy, JAX and\n"
      "others take it by DLPack without a copy, Numba by `__cuda_array_interface__`. A stream\n"
      "that takes an array must outlive it.\n\n"
      "Examples:\n"
      "    >>> there = penstock.to_device(images, \"auto\")\n"
      "    >>> if isinstance(there, penstock.Array):\n"
      "    ...     there = cupy.from_dlpack(there)")
      .def_prop_ro(
          "shape", [](const DeviceArray& array) { return shape_of(array.leaf); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Extent of each axis.")
      .def_prop_ro("dtype", &dtype_of, "Name of the element type: \"float32\", \"bfloat16\", ...")
      .def_prop_ro("nbytes", [](const DeviceArray& array) { return array.leaf.bytes; })
      .def_prop_ro("__cuda_array_interface__", &cuda_array_interface,
                   nb::sig("def __cuda_array_interface__(self) -> dict"),
                   "Blocks the host until the transfer is done. AttributeError for bfloat16.")
      .def("__dlpack__", &to_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
           nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = "
                   "None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"),
           "A DLPack capsule. Later work of `stream` waits for the transfer; the host does not.")
      .def("__dlpack_device__",
           [](const DeviceArray& array) {
             return std::pair<int, int>(array.leaf.device.type, array.leaf.device.index);
           })
      .def("__repr__", [](const DeviceArray& array) {
        return "penstock.Array(shape=" + nb::cast<std::string>(nb::repr(shape_of(array.leaf))) +
               ", dtype=" + dtype_of(array) + ", device=cuda:" + std::to_string(array.leaf.device.index) +
               ")";
      });
}

}  // namespace penstock::python
