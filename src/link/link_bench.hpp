#pragma once

#include <penstock/core/host_workers.hpp>
#include <penstock/link/link_measurement.hpp>
#include <penstock/memory/buffer.hpp>
#include <penstock/memory/pool.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The time in UTC, as ISO 8601.
[[nodiscard]] std::string utc_now();

struct FreePages {
  void operator()(std::byte* data) const noexcept { std::free(data); }
};
/// Host memory on pages of its own.
using Pages = std::unique_ptr<std::byte, FreePages>;

/// The bench for all measurements of a link: sources of each kind of memory with the same random bytes,
/// targets of each kind, repetitions within a time, and the comparison afterwards.
class LinkBench {
 public:
  static constexpr std::size_t kLeastCapacity = std::size_t{64} << 10;

  /// Takes the memory. If there is no room for options.max_bytes, takes less and adds a note.
  LinkBench(Device device, const LinkMeasurementOptions& options, std::vector<std::string>& notes);
  ~LinkBench();
  LinkBench(const LinkBench&) = delete;
  LinkBench& operator=(const LinkBench&) = delete;

  /// Bytes of each region, a power of two.
  [[nodiscard]] std::size_t capacity() const noexcept { return memory_.capacity; }
  /// The sources hold the same random bytes.
  [[nodiscard]] std::byte* pinned_source() const noexcept { return memory_.pinned_source.data(); }
  [[nodiscard]] std::byte* pageable_source() const noexcept { return memory_.pageable_source.get(); }
  [[nodiscard]] std::byte* device_source() const noexcept { return memory_.device_source.data(); }
  [[nodiscard]] std::byte* pinned_target() const noexcept { return memory_.pinned_target.data(); }
  [[nodiscard]] std::byte* pageable_target() const noexcept { return memory_.pageable_target.get(); }
  [[nodiscard]] std::byte* device_target() const noexcept { return memory_.device_target.data(); }

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] const Stream& stream() const noexcept { return stream_; }
  [[nodiscard]] bool quick() const noexcept { return options_.quick; }

  /// Powers of two from 4 KiB to the capacity.
  [[nodiscard]] std::vector<std::size_t> sizes() const;

  /// Reports progress, and lets the caller end the measurement. Called between repetitions, and between parts
  /// of filling and comparing memory.
  void report(std::string_view step, double fraction);

  /// Calls `once` for a warm-up and then for repetitions. `once` does the work and returns its seconds.
  [[nodiscard]] Summary repeat(std::size_t bytes, const std::function<double()>& once);
  /// The same, with `work` timed by the host's clock.
  [[nodiscard]] Summary repeat_timed(std::size_t bytes, const std::function<void()>& work);

  /// Overwrites the first `bytes` of a target, so that older bytes do not pass for those to come.
  void poison_host(std::byte* target, std::size_t bytes);
  void poison_device(std::size_t bytes);
  /// Throws Error unless [target, target + bytes) equals the random bytes from `offset` on.
  void check_host(std::string_view what, const std::byte* target, std::size_t bytes, std::size_t offset = 0);
  /// Throws Error unless the device's target holds the first `bytes` random bytes.
  void check_device(std::string_view what, std::size_t bytes);
  /// Copies the device's target to the pinned target.
  void read_back(std::size_t bytes);

  [[nodiscard]] std::size_t verified_bytes() const noexcept { return verified_bytes_; }

 private:
  struct Memory {
    std::size_t capacity = 0;
    Buffer pinned_source, pinned_target;
    Buffer device_source, device_target;
    Pages pageable_source, pageable_target;
  };

  [[nodiscard]] Memory take(std::size_t bytes);
  [[nodiscard]] Memory take_what_fits(std::vector<std::string>& notes);
  void report_again();
  void fill_sources();
  void for_each_block(std::size_t bytes, const std::function<void(std::size_t, std::size_t)>& body);

  const Device device_;
  const LinkMeasurementOptions& options_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const double budget_;
  std::chrono::steady_clock::time_point reported_{};
  std::string step_ = "taking memory";
  double fraction_ = 0;
  std::size_t verified_bytes_ = 0;

  Memory memory_;
  Stream stream_;
  std::shared_ptr<HostWorkers> workers_;
};

}  // namespace penstock
