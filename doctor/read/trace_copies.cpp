#include "doctor/read/trace_copies.hpp"

#include "core/shared/parse_number.hpp"

#include <utility>

namespace penstock {

namespace {

/// "HtoD", "H2D" and "HostToDevice" are one. On XPUs, M is memory that the runtime does not know, and S is
/// shared by host and device.
std::optional<CopyDirection> direction_of(std::string_view name) {
  constexpr std::pair<std::string_view, CopyDirection> kDirections[] = {
      {"HtoD", CopyDirection::h2d},
      {"DtoH", CopyDirection::d2h},
      {"DtoD", CopyDirection::d2d},
      {"PtoP", CopyDirection::d2d},
      {"M2D", CopyDirection::h2d},
      {"D2M", CopyDirection::d2h},
      {"H2D", CopyDirection::h2d},
      {"D2H", CopyDirection::d2h},
      {"D2D", CopyDirection::d2d},
      {"P2P", CopyDirection::d2d},
      {"S2D", CopyDirection::d2d},
      {"D2S", CopyDirection::d2d},
      {"HostToDevice", CopyDirection::h2d},
      {"DeviceToHost", CopyDirection::d2h},
      {"DeviceToDevice", CopyDirection::d2d},
  };
  for (const std::string_view beginning : {"Memcpy ", "Memcpy", "Copy"}) {
    if (!name.starts_with(beginning)) continue;
    name.remove_prefix(beginning.size());
    for (const auto& [text, direction] : kDirections) {
      if (name.starts_with(text)) return direction;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

std::optional<MemoryKind> kind_of(std::string_view name) {
  constexpr std::pair<std::string_view, MemoryKind> kKinds[] = {
      {"Pageable", MemoryKind::pageable}, {"Pinned", MemoryKind::pinned}, {"Device", MemoryKind::device},
      {"MEMORY", MemoryKind::pageable},   {"HOST", MemoryKind::pinned},   {"DEVICE", MemoryKind::device},
      {"pageable", MemoryKind::pageable}, {"pinned", MemoryKind::pinned}, {"device", MemoryKind::device},
  };
  for (const auto& [text, kind] : kKinds) {
    if (name.starts_with(text)) return kind;
  }
  return std::nullopt;
}

/// What follows `name` in "kind_src:pinned kind_dst:device size:4096".
std::string_view detail_of(std::string_view details, std::string_view name) {
  const std::size_t at = details.find(name);
  if (at == std::string_view::npos) return {};
  details.remove_prefix(at + name.size());
  return details.substr(0, details.find(' '));
}

}  // namespace

bool describe_copy(TimelineCopy& copy, std::string_view name, std::string_view details) {
  const std::optional<CopyDirection> direction = direction_of(name);
  if (!direction) return false;
  copy.direction = *direction;
  const std::size_t open = name.find('(');
  const std::size_t arrow = name.find(" -> ");
  if (open < arrow && arrow != std::string_view::npos) {
    copy.source = kind_of(name.substr(open + 1));
  } else if (!details.empty()) {
    copy.source = kind_of(detail_of(details, "kind_src:"));
    copy.bytes = whole_of(detail_of(details, "size:")).value_or(copy.bytes);
  }
  return true;
}

std::optional<std::uint64_t> whole_of(std::string_view text) {
  return text.starts_with("0x") ? parse_number<std::uint64_t>(text.substr(2), 16)
                                : parse_number<std::uint64_t>(text);
}

}  // namespace penstock
