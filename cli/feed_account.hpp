#pragma once

#include "commands.hpp"
#include "feed_verify.hpp"

#include <penstock/core/feed_statistics.hpp>
#include <penstock/device/device.hpp>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

namespace penstock::cli {

/// How far the feed was at a moment, as the host saw it.
struct FeedMark {
  double seconds = 0;  ///< since the first request
  std::uint64_t samples = 0;
  std::uint64_t delivered_bytes = 0;
};

struct FeedEpoch {
  std::uint64_t epoch = 0;
  bool complete = false;
  double seconds = 0;  ///< since the first request, when it began
  FeedStatistics statistics{};
};

/// All that a run of `penstock feed` has to tell.
struct FeedAccount {
  FeedOptions options;
  std::time_t started = 0;
  DeviceInfo device;
  bool profile_measured = false;
  std::string
      profile_ignored;  ///< why the stored link profile is not used; empty where it is, or is not there
  std::uint64_t dataset_samples = 0;
  std::uint64_t dataset_bytes = 0;
  std::vector<std::string> fields;  ///< Loader::describe
  double open_seconds = 0;          ///< reading and mapping the dataset
  double setup_seconds = 0;         ///< making the loader

  FeedStatistics total{};
  std::vector<FeedEpoch> epochs;
  std::vector<BatchTimes> timeline;
  std::vector<FeedMark> marks;
  VerifyAccount compared{};
  bool verified = false;  ///< every byte of every batch given out was compared, and was right
  bool interrupted = false;
  std::string trouble;  ///< what ended the feed early; empty for none
};

/// The account as JSON text with a final newline.
[[nodiscard]] std::string feed_json(const FeedAccount& account);

/// The account for people: epochs, figures, and at the end the sentence.
[[nodiscard]] std::string feed_text(const FeedAccount& account, const Look& look);

/// "33.4 %", as FeedStatistics prints its shares.
[[nodiscard]] std::string percent_text(double share);

/// What has to be added to the sentence about the step of this command, which is no model's; empty if
/// nothing.
[[nodiscard]] std::string step_advice(const FeedAccount& account);

/// Where in `timeline` the `size` batches begin whose share of waiting comes nearest to `stall_share`. The
/// first `skipped` batches, which nothing could hide, are left out where there are enough.
[[nodiscard]] std::size_t typical_window(const std::vector<BatchTimes>& timeline, std::size_t size,
                                         double stall_share, std::size_t skipped);

}  // namespace penstock::cli
