#include "loader/read_all.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace penstock {

void read_all(const Dataset& dataset, std::size_t field, std::byte* destination, HostWorkers& workers,
              const std::function<void()>& between) {
  constexpr std::size_t kPartBytes = std::size_t{1} << 20;
  constexpr std::size_t kPartsAtOnce = 256;
  const std::size_t sample_bytes = dataset.sample_bytes(field);
  const auto samples = static_cast<std::size_t>(dataset.sample_count());
  const std::size_t part = std::max<std::size_t>(1, kPartBytes / sample_bytes);
  const std::size_t parts = (samples + part - 1) / part;
  for (std::size_t first = 0; first < parts; first += kPartsAtOnce) {
    if (between) between();
    workers.for_each(std::min(kPartsAtOnce, parts - first), [&](std::size_t i) {
      const std::size_t begin = (first + i) * part;
      std::vector<std::uint64_t> indices(std::min(part, samples - begin));
      std::iota(indices.begin(), indices.end(), begin);
      dataset.gather(field, indices, {destination + begin * sample_bytes, indices.size() * sample_bytes});
    });
  }
}

}  // namespace penstock
