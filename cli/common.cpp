#include "commands.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace penstock::cli {

std::filesystem::path profile_file(const std::string& file, const DeviceInfo& device,
                                   const Environment& environment) {
  if (!file.empty()) return file;
  if (!environment.cache_directory) {
    throw Error(
        "There is no place for link profiles: neither XDG_CACHE_HOME nor HOME names an absolute directory; "
        "name a file with --profile.");
  }
  return LinkProfile::file_for(*environment.cache_directory, device);
}

std::optional<LinkProfile> stored_profile(const std::filesystem::path& file, const DeviceInfo& device) {
  std::string why;
  auto profile = LinkProfile::load(file, device, &why);
  std::error_code error;
  if (!profile && std::filesystem::exists(file, error)) fmt::print(stderr, "penstock: ignored: {}\n", why);
  return profile;
}

void write_file(const std::string& file, std::string_view text) {
  std::ofstream stream(file, std::ios::trunc | std::ios::binary);
  stream << text << std::flush;
  if (!stream) throw Error(fmt::format("{} cannot be written ({}).", file, std::strerror(errno)));
}

void require_writable(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  const bool is_there = ::access(file.c_str(), F_OK) == 0;
  const std::string asked = is_there ? file : folder.empty() ? std::string(".") : folder.string();
  int error = ::access(asked.c_str(), is_there ? W_OK : W_OK | X_OK) == 0 ? 0 : errno;
  if (std::filesystem::is_directory(file)) error = EISDIR;
  if (error != 0) throw Error(fmt::format("{} cannot be written ({}).", file, std::strerror(error)));
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

}  // namespace penstock::cli
