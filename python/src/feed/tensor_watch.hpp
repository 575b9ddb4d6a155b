#pragma once

#include "frameworks.hpp"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace penstock::python {

/// Tells whether tensors of PyTorch lie where they lay, with the same type and shape, and whether PyTorch has
/// written to them. It is asked for each batch, so it costs less than the same in Python.
class TensorWatch {
 public:
  explicit TensorWatch(std::vector<nb::object> tensors);
  [[nodiscard]] bool unchanged() const;

 private:
  struct Watched {
    nb::object tensor;
    Leaf leaf;
    std::int64_t version = 0;
    bool is_read = false;
  };
  [[nodiscard]] static bool read(const Watched& watched, std::int64_t& version, Leaf& leaf);

  std::vector<Watched> watched_;
};

void bind_tensor_watch(nb::module_& module);

}  // namespace penstock::python
