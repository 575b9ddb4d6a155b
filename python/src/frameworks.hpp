#pragma once

#include "dlpack.hpp"
#include "storage.hpp"

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

/// The shape, then the strides in elements. Those of up to four axes lie within: a batch may have hundreds of
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

/// Bytes of an array without gaps, and what is needed to make such an array again.
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
  [[nodiscard]] TensorView view(std::shared_ptr<Storage> storage, std::byte* at, dlpack::Device on) const {
    return {std::move(storage), at, on, dtype, ndim(), shape(), strides()};
  }
};

/// Describes `object` by `tensor`. False where its elements have gaps or overlap, or no byte size.
[[nodiscard]] bool fill_leaf(Leaf& leaf, const dlpack::Tensor& tensor);

/// PyTorch, where the program has imported it: its C functions for DLPack where it has them (2.10 and newer),
/// its Python functions otherwise. The interpreter's lock is held in all calls.
class Torch {
 public:
  /// Null where PyTorch is not imported.
  [[nodiscard]] static Torch* get();
  /// Whether to use the C functions; for tests.
  static void use_exchange_api(bool use);

  [[nodiscard]] bool is_tensor_exactly(PyObject* object) const noexcept {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == tensor_type_;
  }
  /// Fills `leaf`. False for tensors that only PyTorch itself can copy (sparse, quantised, that require a
  /// gradient, types of less than eight bits, ...) or that have gaps.
  [[nodiscard]] bool read(Leaf& leaf, PyObject* tensor);
  /// Puts a copy in pinned memory in the place of a tensor in pageable memory; leaves `leaf` as it is where
  /// PyTorch cannot. The copy's memory is PyTorch's, which uses it again once the copy is dropped.
  void pin(Leaf& leaf);
  [[nodiscard]] nb::object make(const TensorView& view);
  /// Memory of PyTorch's allocator, whose earlier uses are done in the order of the current stream. Where it
  /// has none, raises penstock.OutOfMemory, which is torch.OutOfMemoryError, too.
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

/// NumPy, where the program has imported it.
class NumPy {
 public:
  [[nodiscard]] static NumPy* get();
  [[nodiscard]] bool is_array_exactly(PyObject* object) const noexcept {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == array_type_;
  }
  /// Fills `leaf`. False for arrays of other than native numbers, and for those that have gaps.
  [[nodiscard]] bool read(Leaf& leaf, PyObject* array);
  [[nodiscard]] nb::object make(const TensorView& view);

 private:
  PyObject* array_type_ = nullptr;
};

}  // namespace penstock::python
