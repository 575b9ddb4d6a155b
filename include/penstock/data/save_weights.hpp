#pragma once

#include <penstock/core/dtype.hpp>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// A tensor for a .safetensors file.
struct NewWeight {
  std::string name;  ///< UTF-8; not "__metadata__"
  std::string type;  ///< as the file writes it: "F32", "F8_E4M3"
  Shape shape;       ///< {} for a scalar; extents may be 0
};

/// What a .safetensors file holds: its head, and then the tensors without gaps.
struct WeightFileLayout {
  std::string head;  ///< the header's length in eight bytes, and the header; a multiple of 4096
  std::vector<std::size_t>
      offsets;            ///< where each tensor begins in the file: a multiple of its element's size
  std::size_t bytes = 0;  ///< of the whole file
};

/// The type's name in the format: "F32" for DType::float32.
[[nodiscard]] std::string weight_type(DType dtype);

/// Lays a file out. Tensors of large elements come first, otherwise the order stays. `metadata`: texts by
/// name. Throws InvalidArgument for a name that is there twice or that the format keeps for itself, a type
/// that it does not know, texts that are not UTF-8, or a header above 100,000,000 bytes, which no reader
/// takes. Source of the format: https://github.com/huggingface/safetensors#format.
[[nodiscard]] WeightFileLayout lay_out_weights(std::span<const NewWeight> weights,
                                               const std::map<std::string, std::string>& metadata = {});

}  // namespace penstock
