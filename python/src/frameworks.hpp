#pragma once

#include "dlpack.hpp"
#include "storage.hpp"

#include <penstock/core/dtype.hpp>

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

/// The shape, then the strides in elements. Up to four axes are stored in place: a batch may have many
/// arrays.
class Dims {
 public:
  void resize(std::size_t count) {
    count_ = count;
    if (count > few_.size()) many_.resize(count);
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] const std::int64_t* data() const noexcept {
    return count_ <= few_.size() ? few_.data() : many_.data();
  }
  [[nodiscard]] std::int64_t& operator[](std::size_t i) { return count_ <= few_.size() ? few_[i] : many_[i]; }

 private:
  std::size_t count_ = 0;
  std::array<std::int64_t, 8> few_{};
  std::vector<std::int64_t> many_;
};

enum class Framework : std::uint8_t { numpy, torch, penstock };

/// The bytes of an array without gaps, and its description, from which such an array can be made again.
struct Leaf {
  nb::object source;  ///< keeps `data` alive
  Framework framework = Framework::numpy;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  dlpack::Device device;
  dlpack::DataType dtype;
  Dims dims;

  [[nodiscard]] std::int32_t ndim() const noexcept { return static_cast<std::int32_t>(dims.size() / 2); }
  [[nodiscard]] const std::int64_t* shape() const noexcept { return dims.data(); }
  [[nodiscard]] const std::int64_t* strides() const noexcept { return dims.data() + ndim(); }
  /// "float32", "bfloat16", "bool", ...
  [[nodiscard]] std::string dtype_name() const;
  [[nodiscard]] TensorView view(std::shared_ptr<Storage> storage, std::byte* at, dlpack::Device on) const {
    return {std::move(storage), at, on, dtype, ndim(), shape(), strides()};
  }
};

/// The dtype that DLPack describes. Nullopt for complex numbers, 8-bit floats, vectors and others.
[[nodiscard]] std::optional<DType> known_dtype(const dlpack::DataType& dtype);
[[nodiscard]] dlpack::DataType dlpack_of(DType dtype);

/// The description of an array without gaps, of which nothing lies anywhere yet.
[[nodiscard]] Leaf describe(DType dtype, const std::vector<std::size_t>& shape);

/// PyTorch's tensor, or NumPy's array, as `leaf` describes it over memory of the host.
[[nodiscard]] nb::object make_on_host(const Leaf& leaf, std::shared_ptr<Storage> storage, std::byte* at,
                                      bool for_torch);
/// The extents of its axes.
[[nodiscard]] nb::tuple shape_of(const Leaf& leaf);

/// Fills `leaf` from `tensor`. False if its elements have gaps or overlap, or do not have a size in bytes.
[[nodiscard]] bool fill_leaf(Leaf& leaf, const dlpack::Tensor& tensor);

/// DLPack's capsule of a tensor. It calls the deleter if nobody takes the tensor out.
template <typename Managed>
nb::object make_capsule(Managed* managed) {
  PyObject* capsule = PyCapsule_New(managed, Managed::kCapsule, [](PyObject* self) {
    if (PyCapsule_IsValid(self, Managed::kCapsule) == 0) return;  // taken: the consumer has renamed it
    auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(self, Managed::kCapsule));
    unused->deleter(unused);
  });
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

/// PyTorch, if the program has imported it. Uses its C functions for DLPack if it has them (2.10 and newer),
/// otherwise its Python functions. The interpreter's lock is held in all calls.
class Torch {
 public:
  /// Null if PyTorch is not imported.
  [[nodiscard]] static Torch* get();
  /// Whether to use the C functions; for tests.
  static void use_exchange_api(bool use);

  [[nodiscard]] bool is_tensor_exactly(PyObject* object) const noexcept {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == tensor_type_;
  }
  /// Fills `leaf`. False for tensors with gaps, and for those that only PyTorch can copy: sparse, quantised,
  /// requiring a gradient, types of less than eight bits, ...
  [[nodiscard]] bool read(Leaf& leaf, PyObject* tensor);
  /// Replaces a tensor in pageable memory by a copy in pinned memory. If PyTorch cannot, `leaf` stays as it
  /// is. The copy's memory is PyTorch's, which reuses it once the copy is dropped.
  void pin(Leaf& leaf);
  [[nodiscard]] nb::object make(const TensorView& view);
  /// Memory of PyTorch's allocator. Its earlier uses are done in the order of the current stream. If there is
  /// none, raises penstock.OutOfMemory, which is also torch.OutOfMemoryError.
  [[nodiscard]] std::shared_ptr<Storage> allocate(int device_index, std::size_t bytes);
  [[nodiscard]] StreamHandle current_stream(int device_index);

 private:
  Torch() = default;
  [[nodiscard]] bool refresh();
  [[nodiscard]] std::shared_ptr<Storage> allocate_or_raise(int device_index, std::size_t bytes);

  PyObject* tensor_type_ = nullptr;
  const dlpack::ExchangeApi* api_ = nullptr;
  PyObject* to_dlpack_ = nullptr;
  PyObject* from_dlpack_ = nullptr;
};

/// NumPy, if the program has imported it.
class NumPy {
 public:
  [[nodiscard]] static NumPy* get();
  [[nodiscard]] bool is_array_exactly(PyObject* object) const noexcept {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == array_type_;
  }
  /// Fills `leaf`. False for arrays that have gaps, and for those that do not hold native numbers.
  [[nodiscard]] bool read(Leaf& leaf, PyObject* array);
  [[nodiscard]] nb::object make(const TensorView& view);

 private:
  [[nodiscard]] bool read_opaque(Leaf& leaf, PyObject* array);

  PyObject* array_type_ = nullptr;
};

/// Fills `leaf` from a tensor of PyTorch or an array of NumPy, each exactly of that type. False for others,
/// and as `read` of these.
[[nodiscard]] bool read_exactly(Leaf& leaf, PyObject* array);

}  // namespace penstock::python
