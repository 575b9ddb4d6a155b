#pragma once

#include "support/threads.hpp"

#include <penstock/data/batch_sampler.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::testing {

using Batches = std::vector<std::vector<std::uint64_t>>;

inline constexpr std::size_t kListedSamples = 97;

/// Gives the listed batches of each epoch, and notes what it was asked for.
class ListedBatches final : public BatchSampler {
 public:
  explicit ListedBatches(std::map<std::uint64_t, Batches> epochs) : epochs_(std::move(epochs)) {}
  void start_epoch(std::uint64_t epoch) override {
    begun.push_back(epoch);
    left_ = epochs_[epoch];
    std::ranges::reverse(left_);
  }
  bool next(std::vector<std::uint64_t>& indices) override {
    threads.insert(this_thread());
    EXPECT_EQ(inside_++, 0) << "one thread at a time";
    std::this_thread::sleep_for(takes);
    --inside_;
    EXPECT_TRUE(indices.empty());
    if (left_.empty()) return false;
    if (++drawn == fails_at) throw std::runtime_error("no more batches");
    indices = left_.back();
    left_.pop_back();
    return true;
  }

  std::vector<std::uint64_t> begun;
  std::set<pid_t> threads;
  std::size_t drawn = 0;
  std::size_t fails_at = 0;
  std::chrono::microseconds takes{0};

 private:
  std::atomic<int> inside_{0};
  std::map<std::uint64_t, Batches> epochs_;
  Batches left_;
};

/// Of up to `most` of kListedSamples samples each.
inline Batches random_batches(std::size_t count, std::size_t most, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Batches batches(count);
  for (auto& batch : batches) {
    batch.resize(1 + random() % most);
    for (std::uint64_t& index : batch) index = random() % kListedSamples;
  }
  return batches;
}

/// Its first batch comes once `hold` lets go.
class HeldBatches final : public BatchSampler {
 public:
  explicit HeldBatches(Hold& hold) : hold_(hold) {}
  void start_epoch(std::uint64_t epoch) override { epoch_ = epoch; }
  bool next(std::vector<std::uint64_t>& indices) override {
    if (epoch_ == 0) hold_.stay();
    indices.push_back(epoch_);
    return true;
  }

 private:
  Hold& hold_;
  std::uint64_t epoch_ = 0;
};

/// Is interrupted before its second batch, once.
class InterruptedBatches final : public BatchSampler {
 public:
  void start_epoch(std::uint64_t) override { next_ = 0; }
  bool next(std::vector<std::uint64_t>& indices) override {
    if (next_ == 1 && !std::exchange(interrupted_, true)) throw Interrupted();
    if (next_ == 4) return false;
    indices.push_back(next_++);
    return true;
  }

 private:
  std::uint64_t next_ = 0;
  bool interrupted_ = false;
};

/// Every sample twice, in batches of at most 16.
class TwiceInOrder final : public BatchSampler {
 public:
  explicit TwiceInOrder(std::size_t samples) : samples_(samples) {}
  void start_epoch(std::uint64_t) override { next_ = 0; }
  bool next(std::vector<std::uint64_t>& indices) override {
    for (; next_ < 2 * samples_ && indices.size() < 16; ++next_) indices.push_back(next_ % samples_);
    return !indices.empty();
  }

 private:
  const std::size_t samples_;
  std::size_t next_ = 0;
};

}  // namespace penstock::testing
