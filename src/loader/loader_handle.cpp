#include "loader/loader_handle.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

namespace penstock {

void refuse_forked_loader(const char* loader, std::string_view devices) {
  throw DeviceError(
      "PENSTOCK_FORKED", loader, 0,
      fmt::format("This process was forked from the one that made the loader, and cannot use its {}: make "
                  "the loader in this process, or start processes with spawn.",
                  devices));
}

}  // namespace penstock
