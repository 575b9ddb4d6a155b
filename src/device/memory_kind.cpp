#include <penstock/device/memory_kind.hpp>

#include <array>

namespace penstock {

namespace {
constexpr std::array<std::string_view, 4> kNames{"pageable", "pinned", "registered", "device"};
}

std::string_view memory_kind_name(MemoryKind kind) noexcept { return kNames[static_cast<std::size_t>(kind)]; }

std::string_view copy_direction_name(CopyDirection direction) noexcept {
  static constexpr std::array<std::string_view, 3> kDirections{"H2D", "D2H", "D2D"};
  return kDirections[static_cast<std::size_t>(direction)];
}

}  // namespace penstock
