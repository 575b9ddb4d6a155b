#pragma once

#include <penstock/core/error.hpp>
#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/function_ref.hpp>
#include <penstock/data/sampler.hpp>
#include <penstock/device/stream.hpp>
#include <penstock/loader/device_batch.hpp>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// A way in which a process of a group gets its batches: see RankLoader, whose functions these are.
/// Thread-safe. close() comes once.
class RankFeed {
 public:
  RankFeed() = default;
  virtual ~RankFeed() = default;
  RankFeed(const RankFeed&) = delete;
  RankFeed& operator=(const RankFeed&) = delete;

  [[nodiscard]] virtual std::optional<DeviceBatch> next(const Stream& stream,
                                                        const FunctionRef<void()>& while_waiting) = 0;
  virtual void start_epoch(std::uint64_t epoch) = 0;
  virtual void restore(const SamplerState& state) = 0;
  virtual void leave_epoch() = 0;
  [[nodiscard]] virtual SamplerState state() const = 0;
  virtual void close() = 0;

  [[nodiscard]] virtual FeedStatistics stats() const = 0;
  [[nodiscard]] virtual std::vector<BatchTimes> timeline() const = 0;
  [[nodiscard]] virtual std::vector<std::string> describe() const = 0;

 protected:
  /// What next() throws after leave_epoch().
  [[nodiscard]] static std::exception_ptr error_of_left_epoch() {
    return std::make_exception_ptr(
        InvalidArgument("The epoch was left. Start one, in all processes of the group, and ask then."));
  }
};

}  // namespace penstock
