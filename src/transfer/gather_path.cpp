#include <penstock/core/error.hpp>
#include <penstock/transfer/gather_path.hpp>

#include <fmt/format.h>

namespace penstock {

std::string_view gather_path_name(GatherPath path) noexcept {
  switch (path) {
    case GatherPath::automatic:
      return "automatic";
    case GatherPath::host:
      return "host";
    case GatherPath::zero_copy:
      return "zero-copy";
    case GatherPath::copy_engine:
      return "copy-engine";
  }
  return "automatic";
}

GatherPath parse_gather_path(std::string_view name) {
  for (const GatherPath path :
       {GatherPath::automatic, GatherPath::host, GatherPath::zero_copy, GatherPath::copy_engine}) {
    if (name == gather_path_name(path)) return path;
  }
  if (name == "auto") return GatherPath::automatic;
  throw InvalidArgument(
      fmt::format("unknown gather path '{}'; use automatic, host, zero-copy or copy-engine.", name));
}

}  // namespace penstock
