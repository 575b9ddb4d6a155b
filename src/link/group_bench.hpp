#pragma once

#include <penstock/device/device_group.hpp>
#include <penstock/link/group_measurement.hpp>
#include <penstock/memory/buffer.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/memory/registration.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The bench for all measurements of a group: random bytes in host memory that every member reads in place,
/// as much memory on each member, repetitions within a time, and the comparison afterwards.
class GroupBench {
 public:
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

  /// Takes the memory. If there is no room for options.bytes, takes less and adds a note. `measurements`: how
  /// many there will be.
  GroupBench(const DeviceGroup& group, const GroupMeasurementOptions& options, std::size_t measurements,
             std::vector<std::string>& notes);
  GroupBench(const GroupBench&) = delete;
  GroupBench& operator=(const GroupBench&) = delete;

  [[nodiscard]] const DeviceGroup& group() const noexcept { return group_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const std::byte* source() const noexcept { return source_.data(); }
  [[nodiscard]] const std::vector<std::byte*>& places() const noexcept { return places_; }
  [[nodiscard]] const Stream& stream(std::size_t member) const noexcept { return streams_[member]; }

  /// Enqueues a copy of the source over the member's link.
  void pull(std::size_t member) const;
  void synchronize_all() const;

  /// Begins the next measurement, and reports it.
  void begin(std::string_view what);
  /// The median of `once`, which does the work and returns its seconds. Then the `receivers` hold the
  /// source's bytes, or this throws Error.
  [[nodiscard]] double seconds_of(const std::function<double()>& once,
                                  std::span<const std::size_t> receivers);
  /// The same as a rate, with `work` timed by the host's clock.
  [[nodiscard]] double rate_of(const std::function<void()>& work, std::span<const std::size_t> receivers);

  [[nodiscard]] std::size_t verified_bytes() const noexcept { return verified_bytes_; }

 private:
  void take(std::size_t bytes);
  void poison(std::span<const std::size_t> members) const;
  void check(std::size_t member);
  void report() const;

  const DeviceGroup group_;
  const GroupMeasurementOptions& options_;
  const std::size_t measurements_;
  const double budget_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::size_t bytes_ = 0;
  std::size_t measured_ = 0;
  std::string what_ = "taking memory";
  std::size_t verified_bytes_ = 0;

  Pool pinned_;
  std::vector<Pool> pools_;
  std::vector<Stream> streams_;
  Buffer source_;
  Buffer back_;
  std::vector<Registration> locks_;
  std::vector<Buffer> memory_;
  std::vector<std::byte*> places_;
};

}  // namespace penstock
