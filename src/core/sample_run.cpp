#include <penstock/core/error.hpp>
#include <penstock/core/sample_run.hpp>

#include <fmt/format.h>

namespace penstock {

void SampleRun::fill(std::span<std::uint64_t> indices) const {
  if (indices.size() < count) {
    throw InvalidArgument(
        fmt::format("The next batch has {} indices, but there is room for {}: make room for batch_size.",
                    count, indices.size()));
  }
  const auto batch = indices.first(static_cast<std::size_t>(count));
  if (order) return order->fill(first, stride, batch);
  std::uint64_t position = first;
  for (std::uint64_t& index : batch) {
    index = position < size ? position : position % size;
    position += stride;
  }
}

SampleRun SampleRun::part(std::uint64_t begin, std::uint64_t samples) const {
  SampleRun part = *this;
  part.first += begin * stride;
  part.count = samples;
  return part;
}

}  // namespace penstock
