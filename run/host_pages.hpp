#pragma once

#include <cstddef>

namespace penstock {
class HostWorkers;
}

namespace penstock::run {

/// Makes the pages of [data, data + bytes) present, in huge pages where the range has room for them, by the
/// caller and `workers`. What they hold stays. A copy into new memory would otherwise take a fault for each
/// page. False if the range cannot be written, or if memory runs out.
[[nodiscard]] bool make_pages_present(std::byte* data, std::size_t bytes, HostWorkers& workers);

}  // namespace penstock::run
