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

/// How far the feed had come at a moment, as the host saw it.
struct FeedMark {
  double seconds = 0;  ///< since the first request
  std::uint64_t samples = 0;
  std::uint64_t delivered_bytes = 0;
};

struct FeedEpoch {
  std::uint64_t epoch = 0;
  bool complete = false;
  double seconds = 0;  ///< from the first request to the epoch's beginning
  FeedStatistics statistics{};
};

/// The results of a run of `penstock feed`.
struct FeedAccount {
  FeedOptions options;
  std::time_t started = 0;
  DeviceInfo device;
  bool profile_measured = false;
  std::string profile_ignored;  ///< why the stored link profile is ignored; empty if it is used or missing
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
  bool verified = false;  ///< every byte of every batch was compared and right
  bool interrupted = false;
  std::string trouble;  ///< the error that ended the feed early; empty if there was none
};

/// The account as JSON text with a final newline.
[[nodiscard]] std::string feed_json(const FeedAccount& account);

/// The account for people: epochs, figures, and at the end the sentence.
[[nodiscard]] std::string feed_text(const FeedAccount& account);

/// The account as one HTML page that loads nothing.
[[nodiscard]] std::string feed_report(const FeedAccount& account);

/// A row for each epoch.
[[nodiscard]] Table epoch_table(const FeedAccount& account);

/// "33.4 %", as FeedStatistics prints its shares.
[[nodiscard]] std::string percent_text(double share);

/// "12.3 k", of samples a second.
[[nodiscard]] std::string rate_text(double rate);

/// An addition to the sentence about this command's step, which is not a model's; may be empty.
[[nodiscard]] std::string step_advice(const FeedAccount& account);

/// The index in `timeline` at which the `size` batches begin whose share of waiting is nearest to
/// `stall_share`. If there are enough batches, leaves out the first `skipped` ones, which nothing could hide.
[[nodiscard]] std::size_t typical_window(const std::vector<BatchTimes>& timeline, std::size_t size,
                                         double stall_share, std::size_t skipped);

}  // namespace penstock::cli
