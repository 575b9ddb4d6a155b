#include "device/host/gather.hpp"

#include "device/host/convert.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace penstock {

namespace {

template <typename From, typename To>
void convert_row(const From* __restrict from, To* __restrict to, std::size_t elements) noexcept {
  for (std::size_t e = 0; e < elements; ++e) convert_element(from[e], to[e]);
}

template <typename From, typename To>
void scale_run(const From* __restrict from, To* __restrict to, std::size_t elements, float scale,
               float shift) noexcept {
  for (std::size_t e = 0; e < elements; ++e) scale_element(from[e], to[e], scale, shift);
}

template <typename From, FloatTarget To>
void scale_row(const GatherRequest& request, const From* from, To* to) noexcept {
  std::uint32_t channel = 0;
  for (std::size_t e = 0; e < request.row_elements;) {
    const std::size_t run = std::min<std::size_t>(request.channel_elements, request.row_elements - e);
    scale_run(from + e, to + e, run, request.scale != nullptr ? request.scale[channel] : 1.0F,
              request.shift != nullptr ? request.shift[channel] : -0.0F);  // adding -0 changes no value
    e += run;
    channel = channel + 1 == request.channels ? 0 : channel + 1;
  }
}

/// Calls `row(source, destination)` for each of the rows [first, end) that exists, and zeroes the others.
template <typename Row>
void for_each_row(const GatherRequest& request, std::uint64_t first, std::uint64_t end, Row&& row) noexcept {
  const std::size_t row_bytes = request.row_elements * dtype_bytes(request.from);
  const std::size_t stride = request.row_stride_bytes != 0 ? request.row_stride_bytes : row_bytes;
  const std::size_t result_bytes = request.row_elements * dtype_bytes(request.to);
  const auto* head = static_cast<const std::byte*>(request.head);
  const auto* source = static_cast<const std::byte*>(request.source);
  auto* destination = static_cast<std::byte*>(request.destination);
  destination += first * result_bytes;
  for (std::uint64_t i = first; i < end; ++i, destination += result_bytes) {
    const std::uint64_t index = request.indices != nullptr ? request.indices[i] : i;
    if (index < request.head_rows) {
      row(head + index * stride, destination);
    } else if (index < request.source_rows) {
      row(source + (index - request.head_rows) * stride, destination);
    } else {
      std::memset(destination, 0, result_bytes);
    }
  }
}

template <typename From, typename To>
void gather_as(const GatherRequest& request, std::uint64_t first, std::uint64_t end) noexcept {
  if constexpr (FloatTarget<To>) {
    if (request.scale != nullptr || request.shift != nullptr) {
      return for_each_row(request, first, end, [&](const std::byte* from, std::byte* to) {
        scale_row(request, reinterpret_cast<const From*>(from), reinterpret_cast<To*>(to));
      });
    }
  }
  for_each_row(request, first, end, [&](const std::byte* from, std::byte* to) {
    convert_row(reinterpret_cast<const From*>(from), reinterpret_cast<To*>(to), request.row_elements);
  });
}

}  // namespace

std::uint64_t count_rows(const GatherRequest& request, bool of_head, bool of_source) noexcept {
  std::uint64_t rows = 0;
  for (std::uint64_t i = 0; i < request.count; ++i) {
    const std::uint64_t index = request.indices != nullptr ? request.indices[i] : i;
    rows += (index < request.head_rows ? of_head : of_source && index < request.source_rows) ? 1 : 0;
  }
  return rows;
}

void gather_on_host(const GatherRequest& request, std::uint64_t first, std::uint64_t end) noexcept {
  if (request.from == request.to && request.scale == nullptr && request.shift == nullptr) {
    const std::size_t bytes = request.row_elements * dtype_bytes(request.from);
    return for_each_row(request, first, end,
                        [&](const std::byte* from, std::byte* to) { std::memcpy(to, from, bytes); });
  }
  with_type(request.from, [&]<typename From>(From) {
    with_type(request.to, [&]<typename To>(To) {
      if constexpr (converts<From, To>()) gather_as<From, To>(request, first, end);
    });
  });
}

}  // namespace penstock
