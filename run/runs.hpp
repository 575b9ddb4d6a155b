#pragma once

#include "run/driver.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::run {

/// What a call says about the ends of a copy; `any`: the addresses tell.
enum class Ends : std::uint8_t { to_device, to_host, any };

/// Bytes that lie side by side at both ends of a copy.
struct Run {
  Address to = 0;
  Address from = 0;
  std::size_t bytes = 0;
  Ends ends = Ends::any;
};

[[nodiscard]] BoxCopy as_box(const PlaneCopy& plane) noexcept;
/// Nullopt if the box is several runs or has an array, or if the driver might refuse it.
[[nodiscard]] std::optional<Run> as_run(const BoxCopy& box) noexcept;

/// The copies of cuMemcpyBatchAsync.
struct Batch {
  const Address* to = nullptr;
  const Address* from = nullptr;
  const std::size_t* bytes = nullptr;
  std::size_t count = 0;
  const BatchAttributes* attributes = nullptr;
  const std::size_t* first_of = nullptr;  ///< for each of the attributes, the first copy that it is for
  std::size_t kinds = 0;                  ///< how many attributes there are
};

/// True if the driver would take the arguments.
[[nodiscard]] bool is_valid(const Batch& batch) noexcept;
/// True if the source of a copy is read when the stream comes to the copy, and not before. Of a valid one.
[[nodiscard]] bool is_in_stream_order(const Batch& batch) noexcept;

}  // namespace penstock::run
