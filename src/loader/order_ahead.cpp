#include "loader/order_ahead.hpp"

#include <algorithm>

namespace penstock {

const std::uint64_t* OrderAhead::order(const SampleRun& batch, std::uint64_t epoch, const Stream& stream) {
  if (!has(batch, epoch)) {
    // Those past the epoch's end are never asked for.
    SampleRun ahead = batch.part(0, std::max<std::uint64_t>(batch.count, room_));
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
