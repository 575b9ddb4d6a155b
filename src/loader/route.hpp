#pragma once

#include <penstock/core/worker_team.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

/// Streams that batches travel on in turn, so that a batch's first bytes travel while the last ones of the
/// batch before it arrive.
inline constexpr std::size_t kLoaderStreams = 2;

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
  GatherPath path = GatherPath::host;  ///< host, zero_copy or copy_engine
  const std::byte* source = nullptr;  ///< where the device reads row `resident_rows`, unless the host gathers
  std::string reason;                 ///< why this path
  GatherPath without_landing = GatherPath::host;  ///< the path where there is no room to land, and why
  std::string without_landing_reason;
  bool lands = false;  ///< crosses the link into memory of its stream, and a kernel takes it from there

  ChannelFactors factors;
  const float* device_scale = nullptr;
  const float* device_shift = nullptr;

  std::size_t slot_offset = 0;
  std::size_t stage_offset = 0;  ///< of the gathered rows in a stage, for host gather
  std::size_t stage_numbers =
      0;  ///< of the batch's rows numbered anew, where is_listed() beside resident rows
  std::size_t landing_offset = 0;  ///< in a stream's landing memory, where it lands

  [[nodiscard]] bool streams() const noexcept { return resident_rows < rows; }
  [[nodiscard]] bool host_gathered() const noexcept { return streams() && path == GatherPath::host; }
  [[nodiscard]] bool engine_copied() const noexcept { return streams() && path == GatherPath::copy_engine; }
  /// The host has to know which rows are to travel.
  [[nodiscard]] bool is_listed() const noexcept { return host_gathered() || engine_copied(); }
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
  std::size_t landing_bytes = 0;  ///< of each stream
};

/// One route for each field of `dataset`, as `options` ask. Throws InvalidArgument.
[[nodiscard]] std::vector<Route> make_routes(const Dataset& dataset, const LoaderOptions& options);

/// Bytes of device memory that a slot takes.
[[nodiscard]] std::size_t slot_bytes(const std::vector<Route>& routes, std::size_t batch);

/// Bytes of device memory that the factors of all fields take.
[[nodiscard]] std::size_t factor_bytes(const std::vector<Route>& routes) noexcept;

/// Another path than the host's is asked for, and none other will do.
[[nodiscard]] bool is_forced(GatherPath asked) noexcept;

/// Chooses the path of each field, should it stream, and what it falls back to. Locks nothing yet.
void choose_paths(std::vector<Route>& routes, const Dataset& dataset, const Device& device,
                  const LinkProfile& profile, const LoaderOptions& options);

/// Bytes of device memory that things beside the ring take.
struct MemoryShares {
  std::size_t resident = 0;
  std::size_t landing = 0;
};

/// Chooses what is resident and what lands, within `available` bytes. Throws OutOfMemory where what was asked
/// for does not fit.
[[nodiscard]] MemoryShares share_memory(std::vector<Route>& routes, std::size_t batch,
                                        const LoaderOptions& options, std::size_t available);

/// Has nothing land, and takes the paths that do without.
void give_up_landing(std::vector<Route>& routes);

/// Puts plain copies side by side, in a slot as in a stage.
[[nodiscard]] Layout lay_out(std::vector<Route>& routes, std::size_t batch);

/// `dataset` with integer fields in their narrowest types, where finding those is cheap.
[[nodiscard]] Dataset narrow_small_fields(const Dataset& dataset, WorkerTeam* team);

}  // namespace penstock
