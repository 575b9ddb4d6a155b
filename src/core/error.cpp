#include "core/shared/printable.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

namespace penstock {

namespace {

std::string use_text(std::size_t used, std::size_t free) {
  if (used == 0 && free == 0) return "";  // not known
  return fmt::format(": {} are used and {} are free", format_bytes(used), format_bytes(free));
}

}  // namespace

Error::Error(const std::string& message, std::source_location where)
    : std::runtime_error(printable(message)), where_(where) {}

OutOfMemory::OutOfMemory(const std::string& place, std::size_t asked, std::size_t used, std::size_t free,
                         const std::string& advice, std::source_location where)
    : Error(fmt::format("{} cannot give {}{}.{}{}", place, format_bytes(asked), use_text(used, free),
                        advice.empty() ? "" : " ", advice),
            where),
      asked_(asked),
      used_(used),
      free_(free) {}

DeviceError::DeviceError(const std::string& name, const std::string& call, int code,
                         const std::string& detail, std::source_location where)
    : Error(detail.empty() ? fmt::format("{} failed with {} ({}).", call, name, code)
                           : fmt::format("{} ({} failed with {}, {})", detail, call, name, code),
            where),
      name_(name),
      call_(call),
      code_(code) {}

}  // namespace penstock
