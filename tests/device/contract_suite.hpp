#pragma once

#include "support/bytes.hpp"
#include "support/comes_true.hpp"

#include <penstock/core/error.hpp>
#include <penstock/device/backend.hpp>
#include <penstock/device/device.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PENSTOCK_THREAD_SANITIZER 1
#endif
#endif

/// The contract of every backend. To test a backend, instantiate `Contract` with a way to open it.
namespace penstock::testing {

struct ContractDevice {
  std::string name;
  std::function<Device()> open;
  /// Called first. If it returns a sentence, there is nothing to test here, and the sentence is the skip's
  /// message.
  std::function<std::string()> waived = [] { return std::string(); };
};

inline void PrintTo(const ContractDevice& device, std::ostream* out) { *out << device.name; }

/// Locked host memory for one test.
class PinnedBytes {
 public:
  PinnedBytes(const Device& device, std::size_t bytes)
      : device_(device),
        data_(static_cast<std::byte*>(device.backend().host_allocate(bytes))),
        bytes_(bytes) {
    std::memset(data_, static_cast<int>(kPoison), bytes);
  }
  ~PinnedBytes() { device_.backend().host_free(data_); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  void assign(std::span<const std::byte> from) { std::memcpy(data_, from.data(), from.size()); }

 private:
  Device device_;
  std::byte* data_;
  std::size_t bytes_;
};

/// Device memory for one test.
class DeviceBytes {
 public:
  DeviceBytes(const Device& device, std::size_t bytes)
      : device_(device),
        data_(static_cast<std::byte*>(device.backend().device_allocate(bytes))),
        bytes_(bytes) {}
  ~DeviceBytes() { device_.backend().device_free(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  Device device_;
  std::byte* data_;
  std::size_t bytes_;
};

/// Holds a stream back until `open`. Its destructor opens it, so that a failed test does not hang.
class Gate {
 public:
  explicit Gate(const Device& device) : word_(device, sizeof(std::uint32_t)) { set(0); }
  ~Gate() { open(); }

  void hold(const Stream& stream) { stream.wait_value(word_.as<std::uint32_t>(), 1); }
  void open() { set(1); }
  void set(std::uint32_t value) { std::atomic_ref(*word_.as<std::uint32_t>()).store(value); }
  [[nodiscard]] const std::uint32_t* word() const { return word_.as<std::uint32_t>(); }

 private:
  PinnedBytes word_;
};

/// A byte that a stream's work sets. It shows that everything enqueued before is done.
class Flag {
 public:
  explicit Flag(const Device& device) : set_(device, 1), seen_(device, 1) {}

  /// Does not block: the work is enqueued.
  void raise_on(const Stream& stream) {
    stream.fill(set_.data(), kRaised, 1);
    stream.copy(seen_.data(), set_.data(), 1, CopyDirection::d2h);
  }
  [[nodiscard]] bool raised() const { return *seen_.data() == std::byte{kRaised}; }

 private:
  static constexpr std::uint8_t kRaised = 1;
  DeviceBytes set_;
  PinnedBytes seen_;
};

class Contract : public ::testing::TestWithParam<ContractDevice> {
 protected:
  void SetUp() override {
    if (const std::string reason = GetParam().waived(); !reason.empty()) GTEST_SKIP() << reason;
    device_.emplace_back(GetParam().open());
    stream_.push_back(device().create_stream());
  }

  [[nodiscard]] const Device& device() const { return device_.front(); }
  [[nodiscard]] Backend& backend() const { return device().backend(); }
  [[nodiscard]] const Stream& stream() const { return stream_.front(); }

  /// Copies `bytes` to `destination`, and returns when they are there.
  void upload(void* destination, std::span<const std::byte> bytes) const {
    if (bytes.empty()) return;
    PinnedBytes staging(device(), bytes.size());
    staging.assign(bytes);
    stream().copy(destination, staging.data(), bytes.size(), CopyDirection::h2d);
    stream().synchronize();
  }

  /// The bytes at `source` after all work of stream().
  [[nodiscard]] std::vector<std::byte> download(const void* source, std::size_t bytes) const {
    if (bytes == 0) return {};
    PinnedBytes staging(device(), bytes);
    stream().copy(staging.data(), source, bytes, CopyDirection::d2h);
    stream().synchronize();
    return {staging.data(), staging.data() + bytes};
  }

 private:
  std::vector<Device> device_;
  std::vector<Stream> stream_;
};

/// The names of instantiated tests.
inline std::string contract_name(const ::testing::TestParamInfo<ContractDevice>& info) {
  return info.param.name;
}

/// Fails if the ranges differ, and says where they first do.
inline ::testing::AssertionResult same_bytes(std::span<const std::byte> expected,
                                             std::span<const std::byte> actual) {
  const std::ptrdiff_t at = first_difference(expected, actual);
  if (at < 0) return ::testing::AssertionSuccess();
  const auto value = [&](std::span<const std::byte> bytes) {
    return static_cast<std::size_t>(at) < bytes.size() ? std::to_string(std::to_integer<int>(bytes[at]))
                                                       : "nothing";
  };
  return ::testing::AssertionFailure() << "of " << expected.size() << " bytes, byte " << at << " is "
                                       << value(actual) << " instead of " << value(expected);
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace penstock::testing
