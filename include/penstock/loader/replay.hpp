#pragma once

#include <penstock/core/shared_pages.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/loader/loader_options.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock {

/// Rows that processes write while others sample them: a ring in shared pages, of `capacity` rows and some
/// more slots. Nobody waits for anybody. Thread-safe. The processes see each other's PIDs.
///
/// A writer takes the next number of a row, and claims the number's slot by a mark in it. It writes the row,
/// and then sets the mark to the number. It goes on to another number if the slot is claimed by a process
/// that lives, or has a later row. So a writer that stops within a row holds up nobody, and its slot is used
/// again once it has ended and was waited for.
///
/// A sampler draws among the latest `capacity` numbers, and takes rows whose mark is their number. Only the
/// number that is as many further as there are slots overwrites a row, and a number is taken before a byte is
/// written. So if that number is not taken when a device has read the row, the row is whole. Otherwise the
/// batch is dropped, and another one drawn: see BatchSampler::may_tear. The device may read by itself.
class ReplayRows {
 public:
  static constexpr std::uint32_t kEnvironments = 65'536;

  /// `file`: that of the rows of another process, with the same fields and capacity; it stays the caller's.
  /// Otherwise there are no rows yet. Pages are taken when rows are written, or a Loader locks them, on all
  /// NUMA nodes in turn. Throws OutOfMemory if the host has less memory, InvalidArgument for another file,
  /// and as Dataset and SharedPages.
  ReplayRows(const std::vector<Field>& fields, std::uint64_t capacity,
             std::optional<int> file = std::nullopt);

  /// Writes a row of each of `environments`. `values`: of each field, all rows side by side. A row follows
  /// the latest one of its environment that this object has written in this process; one thread writes of an
  /// environment at a time. Throws InvalidArgument for an environment from kEnvironments on.
  void add(const std::vector<const std::byte*>& values, std::span<const std::uint32_t> environments);

  /// Rows that may be sampled, with those that are being written.
  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] const SharedPages& pages() const noexcept { return *pages_; }
  /// A sample for each slot.
  [[nodiscard]] const Dataset& dataset() const noexcept { return *dataset_; }

 private:
  friend class ReplaySampler;
  struct Head;
  struct Mark;
  [[nodiscard]] Head& head() const noexcept;
  [[nodiscard]] Mark& mark(std::uint64_t number) const noexcept;
  [[nodiscard]] std::uint64_t claim() const noexcept;

  const std::uint64_t capacity_;
  const std::uint64_t slots_;
  std::shared_ptr<const SharedPages> pages_;
  std::optional<Dataset> dataset_;
  std::vector<std::atomic<std::uint64_t>> latest_;  ///< of each environment, its row's number + 1
  std::atomic<std::uint64_t> forks_;
};

struct ReplayOptions {
  std::uint64_t batch_size = 1;
  /// Rows of a sample, all of one environment: 0 and 3 are a row and the third after it. A batch has the rows
  /// of its first sample, in this order, then those of the next.
  std::vector<std::int64_t> offsets{0};
  /// The draws follow from it, from the rows that are there, and from how many samplers these had before.
  std::uint64_t seed = 0;
};

/// What a Loader of `rows->dataset()` takes for endless batches, drawn with replacement. All samples that can
/// be drawn are equally likely; Loader::next throws InvalidArgument if there are none. Throws InvalidArgument
/// for no offsets, and for samples that reach over more rows than the capacity.
[[nodiscard]] LoaderOptions sample_rows(std::shared_ptr<const ReplayRows> rows, const ReplayOptions& options);

}  // namespace penstock
