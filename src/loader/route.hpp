#pragma once

#include <penstock/core/worker_team.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader.hpp>
#include <penstock/memory/registration.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The way of one field from the dataset into the slots. Rows 0 to resident_rows-1 are on the device; the
/// others are read there over the link, or gathered by the host.
struct Route {
  Field stored;
  DType to = DType::uint8;
  std::uint64_t rows = 0;
  std::size_t row_elements = 0;
  std::size_t row_bytes = 0;        ///< as stored
  std::size_t delivered_bytes = 0;  ///< of one row
  bool converts = false;

  std::uint64_t resident_rows = 0;
  const std::byte* resident = nullptr;
  bool zero_copy = false;
  const std::byte* source = nullptr;  ///< where the device reads row `resident_rows`, for zero-copy
  std::string reason;                 ///< why not zero-copy

  std::vector<float> scale;
  std::vector<float> shift;
  const float* device_scale = nullptr;
  const float* device_shift = nullptr;
  std::uint32_t channels = 1;
  std::size_t channel_elements = 1;

  std::size_t slot_offset = 0;
  std::size_t stage_offset = 0;   ///< of the gathered rows in a stage, for host gather
  std::size_t stage_numbers = 0;  ///< of the batch's rows numbered anew, for host gather beside resident rows

  [[nodiscard]] bool streams() const noexcept { return resident_rows < rows; }
  [[nodiscard]] bool host_gathered() const noexcept { return streams() && !zero_copy; }
  /// Travels in one copy with its like: nothing is to be done on the device.
  [[nodiscard]] bool is_plain_copy() const noexcept {
    return host_gathered() && resident_rows == 0 && !converts;
  }
  [[nodiscard]] std::string describe() const;
};

/// How a slot and a stage are laid out for `batch` samples.
struct Layout {
  std::size_t slot_bytes = 0;
  std::size_t slot_indices = 0;  ///< offset of the batch's indices in a slot
  std::size_t stage_bytes = 0;
  std::size_t stage_indices = 0;  ///< offset of the batch's indices in a stage
};

/// One route for each field of `dataset`, as `options` ask. Throws InvalidArgument.
[[nodiscard]] std::vector<Route> make_routes(const Dataset& dataset, const LoaderOptions& options);

/// Bytes of device memory that a slot takes.
[[nodiscard]] std::size_t slot_bytes(const std::vector<Route>& routes, std::size_t batch);

/// Bytes of device memory that the factors of all fields take.
[[nodiscard]] std::size_t factor_bytes(const std::vector<Route>& routes) noexcept;

/// Sets `resident_rows` within `available` bytes; returns the bytes they take. Throws OutOfMemory.
std::size_t choose_residency(std::vector<Route>& routes, const Residency& residency, std::size_t available);

/// Locked by another library's allocator, say, and by none of our registrations, which may end before the
/// loader does, and which may cover a part of it only.
[[nodiscard]] bool is_locked_by_others(const Device& device, std::span<const std::byte> range);

/// Chooses between zero-copy and host gather for what streams, and locks memory for the former. Throws
/// InvalidArgument where zero-copy is asked for and cannot be had.
[[nodiscard]] std::vector<Registration> choose_gather(std::vector<Route>& routes, const Dataset& dataset,
                                                      const Device& device, const LinkProfile& profile,
                                                      GatherPath asked);

/// Puts plain copies side by side, in a slot as in a stage.
[[nodiscard]] Layout lay_out(std::vector<Route>& routes, std::size_t batch);

/// `dataset` with integer fields in their narrowest types, where finding those is cheap.
[[nodiscard]] Dataset narrow_small_fields(const Dataset& dataset, WorkerTeam* team);

}  // namespace penstock
