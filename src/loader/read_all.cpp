#include "loader/read_all.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace penstock {

void read_all(const Dataset& dataset, std::size_t field, std::byte* destination, HostWorkers& workers) {
  constexpr std::size_t kPartBytes = std::size_t{1} << 20;
  const std::size_t sample_bytes = dataset.sample_bytes(field);
  const auto samples = static_cast<std::size_t>(dataset.sample_count());
  const std::size_t part = std::max<std::size_t>(1, kPartBytes / sample_bytes);
  workers.for_each((samples + part - 1) / part, [&](std::size_t i) {
    std::vector<std::uint64_t> indices(std::min(part, samples - i * part));
    std::iota(indices.begin(), indices.end(), i * part);
    dataset.gather(field, indices, {destination + i * part * sample_bytes, indices.size() * sample_bytes});
  });
}

}  // namespace penstock
