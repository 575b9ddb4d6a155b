#pragma once

#include <penstock/transfer/transfer_engine.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace penstock::testing {

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A function that fills with `source`, and notes what it was asked for.
class Filler {
 public:
  explicit Filler(std::vector<std::byte> source) : source_(std::move(source)) {}

  FillFunction function() {
    return [this](std::size_t offset, std::span<std::byte> bytes) { fill(offset, bytes); };
  }
  void fill(std::size_t offset, std::span<std::byte> bytes) {
    ASSERT_LE(offset, source_.size());
    ASSERT_LE(bytes.size(), source_.size() - offset);
    std::copy_n(source_.begin() + static_cast<std::ptrdiff_t>(offset), bytes.size(), bytes.begin());
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(parts_.emplace(offset, bytes.size()).second) << "byte " << offset << " twice";
  }
  /// Each byte was asked for once.
  void expect_all() const {
    std::size_t end = 0;
    for (const auto& [offset, bytes] : parts_) {
      EXPECT_EQ(offset, end);
      EXPECT_GT(bytes, 0u);
      end = offset + bytes;
    }
    EXPECT_EQ(end, source_.size());
  }
  [[nodiscard]] const std::vector<std::byte>& source() const { return source_; }
  [[nodiscard]] std::size_t parts() const { return parts_.size(); }

 private:
  const std::vector<std::byte> source_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> parts_;
};

}  // namespace penstock::testing
