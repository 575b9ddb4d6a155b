#include "cli/shared/link_profiles.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <fstream>

namespace penstock::cli {

const std::filesystem::path& profile_directory(const Environment& environment) {
  if (environment.cache_directory) return *environment.cache_directory;
  throw Error(
      "There is no directory for link profiles: neither XDG_CACHE_HOME nor HOME names an absolute one. "
      "Name a file with --profile.");
}

void require_profile_place(const std::filesystem::path& file, bool named) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(
        fmt::format("{} is not a regular file, so the link profile cannot be stored in it; use --no-store.",
                    file.string()));
  }
  const int first = std::ifstream(file).get();
  if (named && first != std::ifstream::traits_type::eof() && first != '{') {
    throw Error(
        fmt::format("{} is not a link profile and would be overwritten; name another file.", file.string()));
  }
}

std::string format_rate(double bytes_per_second) {
  const double rate = bytes_per_second / kGB;
  return fmt::format("{:.{}f}", rate, rate < 10 ? 2 : rate < 1000 ? 1 : 0);
}

std::string format_link(const LinkInfo& link) {
  if (link.max_generation == 0 || link.max_width == 0) return "not stated";
  std::string text = fmt::format("PCIe {} x{}, {} GB/s each way at most", link.max_generation, link.max_width,
                                 format_rate(link.theoretical_bytes_per_second()));
  if (link.generation != 0 && (link.generation != link.max_generation || link.width != link.max_width)) {
    text += fmt::format(" (now PCIe {} x{})", link.generation, link.width);
  }
  return text;
}

std::string link_text(const DeviceInfo& device) {
  return device.in_host_memory ? "none: copies within host memory" : format_link(device.link);
}

}  // namespace penstock::cli
