#pragma once

#include "data/file.hpp"

#include <penstock/core/dtype.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

/// One tensor's entry in the header of a .safetensors file.
struct SafeTensor {
  std::string name;
  DType dtype = DType::uint8;
  Shape shape;               ///< of the whole tensor
  std::uint64_t offset = 0;  ///< of its data in the file
};

/// True if a file of `file_bytes` bytes that begins with `head` may be a .safetensors file.
[[nodiscard]] bool is_safetensors(std::span<const std::byte> head, std::uint64_t file_bytes) noexcept;

/// Reads the header of a .safetensors file of `file_bytes` bytes; gives the tensors in the order of their
/// names. Checks that each can be fed, and that together they fill the file exactly. Throws Error that names
/// `file`, the offset and the expected content.
[[nodiscard]] std::vector<SafeTensor> read_safetensors_header(ReadAt read, std::uint64_t file_bytes,
                                                              const std::string& file);

}  // namespace penstock
