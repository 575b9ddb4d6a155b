#pragma once

#include "data/file.hpp"

#include <penstock/core/dtype.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The limit of the format's own library.
inline constexpr std::uint64_t kLongestSafetensorsHeader = 100'000'000;
/// The header's entry for texts.
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

struct SafetensorsType {
  std::optional<DType> dtype;  ///< none: DType lacks it
  unsigned bits = 0;           ///< of an element
};

/// None for types that penstock does not move.
[[nodiscard]] std::optional<SafetensorsType> parse_safetensors_type(std::string_view name);
/// "F32" for DType::float32.
[[nodiscard]] std::string_view safetensors_type(DType dtype);

/// One tensor's entry in the header of a .safetensors file.
struct SafeTensor {
  std::string name;
  std::string type;            ///< as the file writes it: "F32"
  std::optional<DType> dtype;  ///< none: DType lacks it, as "F8_E4M3", or it is not known
  Shape shape;                 ///< of the whole tensor; may be a scalar, or have no elements
  std::uint64_t offset = 0;    ///< of its data in the file
  std::uint64_t bytes = 0;
};

/// Texts by name.
using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafeTensor> tensors;  ///< in the order of the file; there may be none
  SafetensorsMetadata metadata;
};

/// True if a file of `file_bytes` bytes that begins with `head` may be a .safetensors file.
[[nodiscard]] bool is_safetensors(std::span<const std::byte> head, std::uint64_t file_bytes) noexcept;

/// Reads the header of a .safetensors file of `file_bytes` bytes. Checks that the tensors together fill the
/// file exactly. Throws Error that names `file`, the tensor, the offset and the expected content. Types need
/// not be known.
[[nodiscard]] SafetensorsHeader read_safetensors_header(ReadAt read, std::uint64_t file_bytes,
                                                        const std::string& file);

/// Throws Error that names `file` and the tensor if `type`, the tensor's, is none that penstock moves.
void require_known_type(std::string_view type, const std::string& tensor, const std::string& file);

}  // namespace penstock
