#include "run/runs.hpp"

#include <algorithm>
#include <climits>
#include <functional>
#include <span>

namespace penstock::run {

namespace {

/// Larger ones are refused by the driver, or left to it: no product of three overflows.
constexpr std::size_t kLargest = INT_MAX;

/// Where a side of the box begins. Nullopt if its rows, or layers of rows, do not lie side by side.
std::optional<Address> begin_of(const BoxSide& side, const BoxCopy& box) noexcept {
  const bool is_linear =
      side.type == MemoryType::host || side.type == MemoryType::device || side.type == MemoryType::unified;
  if (!is_linear || side.level != 0 || side.reserved != nullptr) return std::nullopt;
  if (std::max({side.x, side.y, side.z, side.pitch, side.height}) > kLargest) return std::nullopt;
  if (side.pitch < side.x + box.width) return std::nullopt;
  if (side.height != 0 && side.height < side.y + box.height) return std::nullopt;
  const bool is_one_row = box.height == 1 && box.depth == 1;
  if (!is_one_row && side.pitch != box.width) return std::nullopt;
  if (box.depth != 1 && side.height != box.height) return std::nullopt;
  if (side.z != 0 && side.height == 0) return std::nullopt;
  const Address rows = side.z * side.height + side.y;
  if (rows > kLargest) return std::nullopt;
  const Address base = side.type == MemoryType::host ? side.host : side.device;
  return base + rows * side.pitch + side.x;
}

Ends ends_of(const BoxCopy& box) noexcept {
  if (box.from.type == MemoryType::host || box.to.type == MemoryType::device) return Ends::to_device;
  if (box.from.type == MemoryType::device || box.to.type == MemoryType::host) return Ends::to_host;
  return Ends::any;
}

}  // namespace

BoxCopy as_box(const PlaneCopy& plane) noexcept {
  const auto side = [](const PlaneSide& from) {
    return BoxSide{.x = from.x,
                   .y = from.y,
                   .type = from.type,
                   .host = from.host,
                   .device = from.device,
                   .array = from.array,
                   .pitch = from.pitch};
  };
  return {.from = side(plane.from),
          .to = side(plane.to),
          .width = plane.width,
          .height = plane.height,
          .depth = 1};
}

std::optional<Run> as_run(const BoxCopy& box) noexcept {
  if (std::max({box.width, box.height, box.depth}) > kLargest) return std::nullopt;
  const std::optional<Address> to = begin_of(box.to, box);
  const std::optional<Address> from = begin_of(box.from, box);
  if (!to || !from || box.height * box.depth > kLargest) return std::nullopt;
  return Run{*to, *from, box.width * box.height * box.depth, ends_of(box)};
}

bool is_valid(const Batch& batch) noexcept {
  const void* const pointers[] = {batch.to, batch.from, batch.bytes, batch.attributes, batch.first_of};
  if (std::ranges::count(pointers, nullptr) != 0 || batch.count == 0 || batch.kinds == 0) return false;
  const std::span first_of(batch.first_of, batch.kinds);
  if (first_of.front() != 0 || first_of.back() >= batch.count) return false;
  if (std::ranges::adjacent_find(first_of, std::greater_equal()) != first_of.end()) return false;
  return std::ranges::all_of(std::span(batch.attributes, batch.kinds), [](const BatchAttributes& attributes) {
    return attributes.order >= AccessOrder::stream && attributes.order <= AccessOrder::any &&
           attributes.flags <= 1;
  });
}

bool is_in_stream_order(const Batch& batch) noexcept {
  return std::ranges::any_of(std::span(batch.attributes, batch.kinds), [](const BatchAttributes& attributes) {
    return attributes.order == AccessOrder::stream;
  });
}

}  // namespace penstock::run
