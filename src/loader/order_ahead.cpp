#include "loader/order_ahead.hpp"

#include <algorithm>

namespace penstock {

const std::uint64_t* OrderAhead::order(const SampleRun& batch, std::uint64_t epoch, const Stream& stream) {
  if (!has(batch, epoch)) {
    // The last batch may go past the epoch's end, and no other is asked for there.
    const std::uint64_t left = (batch.size - batch.first % batch.size) / batch.stride + batch.count;
    SampleRun ahead = batch.part(0, std::max(batch.count, std::min<std::uint64_t>(room_, left)));
    stream.fill_order({ahead, indices_});
    ahead_ = std::move(ahead);
    epoch_ = epoch;
  }
  return indices_ + (batch.first - ahead_.first) / batch.stride;
}

/// An epoch has one order, and a loader one stride.
bool OrderAhead::has(const SampleRun& batch, std::uint64_t epoch) const noexcept {
  if (epoch != epoch_ || batch.first < ahead_.first) return false;
  const std::uint64_t positions = batch.first - ahead_.first;
  return positions % batch.stride == 0 && positions / batch.stride + batch.count <= ahead_.count;
}

}  // namespace penstock
