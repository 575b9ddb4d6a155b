#pragma once

#include "run/copies.hpp"
#include "run/figures.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock::run {

/// Makes copies in a device's primary context, as the driver does: it enqueues parts on the program's own
/// stream, which pass through pinned memory. All host workers move the bytes there, and not the calling
/// thread alone. Thread-safe.
class DeviceCopier {
 public:
  /// `library`: the driver's file. Opens nothing yet.
  DeviceCopier(std::string library, Ordinal device, Context primary);
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  [[nodiscard]] Ordinal device() const noexcept { return device_; }
  [[nodiscard]] Context context() const noexcept { return primary_; }

  /// Opens the device at the first call. False if that fails, or if a copy has failed.
  [[nodiscard]] bool opens();
  /// Makes copies between pageable memory and the device's, and returns when the driver would: nullopt.
  /// Otherwise says why it did not, and nothing touches the host's ends any more. `to_host`: for each run of
  /// the call, its way.
  [[nodiscard]] std::optional<Reason> copy(const CopyCall& call, const std::vector<bool>& to_host);

 private:
  struct Engine;

  const std::string library_;
  const Ordinal device_;
  const Context primary_;
  std::mutex mutex_;
  bool failed_ = false;             ///< guarded by the mutex
  std::unique_ptr<Engine> engine_;  ///< set once
};

}  // namespace penstock::run
