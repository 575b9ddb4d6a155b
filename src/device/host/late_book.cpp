#include "device/host/late_book.hpp"

#include "device/host/host_memory.hpp"
#include "device/host/host_stream.hpp"

#include <algorithm>
#include <cstring>

namespace penstock {

namespace {

const std::byte* bytes_at(const void* data) noexcept { return static_cast<const std::byte*>(data); }

}  // namespace

std::uint64_t LateBook::enqueue(HostStream& stream, const Work& work) {
  const Ranges ranges = ranges_of(work);
  const std::lock_guard lock(mutex_);
  std::erase_if(ahead_, [](const Access& access) { return access.stream->done(access.ticket); });
  if (ranges.written.bytes != 0 && !in_use(ranges.written)) {
    std::memset(const_cast<std::byte*>(ranges.written.begin), kPoison, ranges.written.bytes);
  }
  const std::uint64_t ticket = stream.enqueue(work);
  const auto note = [&](const Range& range) { ahead_.push_back({stream.shared_from_this(), ticket, range}); };
  if (ranges.anything) note({});
  if (ranges.written.bytes != 0) note(ranges.written);
  for (const Range& range : ranges.read) note(range);
  return ticket;
}

void LateBook::clear() {
  const std::lock_guard lock(mutex_);
  ahead_.clear();
}

LateBook::Ranges LateBook::ranges_of(const Work& work) {
  Ranges ranges;
  if (const auto* copy = std::get_if<CopyWork>(&work)) {
    ranges.written = {bytes_at(copy->destination), copy->bytes};
    ranges.read = {{bytes_at(copy->source), copy->bytes}};
  } else if (const auto* fill = std::get_if<FillWork>(&work)) {
    ranges.written = {bytes_at(fill->destination), fill->bytes};
  } else if (const auto* gather = std::get_if<GatherWork>(&work)) {
    const GatherRequest& request = gather->request;
    const std::size_t row = request.row_elements * dtype_bytes(request.from);
    const std::size_t stride = request.row_stride_bytes != 0 ? request.row_stride_bytes : row;
    ranges.written = {bytes_at(request.destination),
                      request.count * request.row_elements * dtype_bytes(request.to)};
    ranges.read = {{bytes_at(request.source), (request.source_rows - request.head_rows) * stride},
                   {bytes_at(request.head), request.head_rows * stride},
                   {bytes_at(request.indices), request.count * sizeof(std::uint64_t)},
                   {bytes_at(request.scale), request.channels * sizeof(float)},
                   {bytes_at(request.shift), request.channels * sizeof(float)}};
    std::erase_if(ranges.read, [](const Range& range) { return range.begin == nullptr; });
  } else if (const auto* order = std::get_if<OrderWork>(&work)) {
    ranges.written = {bytes_at(order->request.indices), order->request.run.count * sizeof(std::uint64_t)};
  } else if (std::holds_alternative<PiecesWork>(work)) {
    ranges.anything = true;
  }
  return ranges;
}

bool LateBook::in_use(const Range& range) const {
  return std::any_of(ahead_.begin(), ahead_.end(), [&](const Access& access) {
    if (access.range.begin == nullptr) return true;
    return access.range.begin < range.begin + range.bytes &&
           range.begin < access.range.begin + access.range.bytes;
  });
}

}  // namespace penstock
