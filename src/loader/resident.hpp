#pragma once

#include "loader/feeders.hpp"

#include <penstock/core/function_ref.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <cstddef>
#include <vector>

namespace penstock {

/// The resident samples of the dataset, the factors that scale its fields, and the table that splits its
/// rows.
class Resident {
 public:
  /// Takes the memory, and uploads the tables. Throws OutOfMemory.
  Resident(const Device& device, Pool& memory, const FeedPlan& plan);

  /// Sets the device's addresses of the resident samples and the factors.
  void set_addresses(std::vector<FieldAddresses>& fields) const;
  /// The table that splits rows, as Stream::split_rows takes it; without rows, count and destination.
  [[nodiscard]] const SplitRequest& split() const noexcept { return split_; }

  /// Moves the resident samples. Blocks the host until they are there. If `stopped` returns true, returns
  /// false, and may be called again. Throws what reading throws.
  [[nodiscard]] bool fill(const Dataset& dataset, const FeedPlan& plan, const LinkProfile& profile,
                          const std::shared_ptr<HostWorkers>& workers, FunctionRef<bool()> stopped);

 private:
  struct Factors {
    const float* scale = nullptr;
    const float* shift = nullptr;
  };

  void upload_tables(Pool& memory, const FeedPlan& plan);

  Device device_;
  std::vector<Buffer> samples_;  ///< one for each field; empty if none of its samples are resident
  std::vector<Factors> factors_;
  SplitRequest split_;
  Buffer table_memory_;
};

}  // namespace penstock
