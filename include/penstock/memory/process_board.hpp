#pragma once

#include <penstock/memory/share_pages.hpp>

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct ProcessBoardOptions {
  /// Names the group, and says how many processes it has: see ShareOptions. `while_waiting` is also called in
  /// exchange.
  ShareOptions meeting{};
  /// This process's number: 0 to `meeting.processes` - 1, another one in each.
  std::size_t rank = 0;
  /// How long to wait for a process that is alive and does not do its part: at most a year.
  std::chrono::milliseconds timeout{600'000};
};

/// The board of a group of processes of one host: a few words that each sets and all read, and texts that all
/// exchange. It lies in memory that they share, and goes with them. If a process ends, also by SIGKILL, the
/// others notice it: the system takes back a lock that it held.
///
/// Thread-safe, but for `exchange` and `agree`, which one thread calls at a time, and all processes equally
/// often.
class ProcessBoard {
 public:
  static constexpr std::size_t kWords = 6;
  static constexpr std::size_t kLongestText = std::size_t{16} << 10;

  /// Blocks the host until all processes have come. Throws Error if one that had come has ended, or if one
  /// has not come in time; InvalidArgument for a rank that does not fit or that another process has;
  /// Unsupported, and the exceptions of `while_waiting`.
  explicit ProcessBoard(ProcessBoardOptions options);
  /// As leave.
  ~ProcessBoard();
  ProcessBoard(const ProcessBoard&) = delete;
  ProcessBoard& operator=(const ProcessBoard&) = delete;

  [[nodiscard]] std::size_t rank() const noexcept { return options_.rank; }
  [[nodiscard]] std::size_t size() const noexcept { return options_.meeting.processes; }
  [[nodiscard]] const ProcessBoardOptions& options() const noexcept { return options_; }
  [[nodiscard]] pid_t process(std::size_t rank) const noexcept;

  /// Sets a word of this process. A process that reads the new value also sees what this one wrote before to
  /// memory that they share. The words begin as 0.
  void set(std::size_t word, std::uint64_t value) noexcept;
  [[nodiscard]] std::uint64_t get(std::size_t rank, std::size_t word) const noexcept;

  /// Gives `text` to all and returns the texts of all, by rank. Blocks the host until all have called it.
  /// Throws Error if a process has ended or left, or does not call it in time, and the exceptions of
  /// `while_waiting`: the board is no use then. Throws InvalidArgument for a text above kLongestText.
  [[nodiscard]] std::vector<std::string> exchange(std::string_view text);

  /// Compares `text`, which may have any length, with those of the others. Throws InvalidArgument in all
  /// processes if they differ: it names two ranks, with their texts from before the first difference on.
  /// Otherwise as exchange.
  void agree(const std::string& text);

  /// Tells the others why this process cannot go on; an empty text takes that back. A long one is cut short.
  void complain(std::string_view text) noexcept;

  /// A sentence if the process has ended, has left or complains. Empty if it goes on. Who has left may have
  /// done so since another has ended: that one is named.
  [[nodiscard]] std::string trouble(std::size_t rank) const;
  /// True if the process has ended and had not left. Costs a call of the system.
  [[nodiscard]] bool has_ended(std::size_t rank) const noexcept;
  [[nodiscard]] bool has_left(std::size_t rank) const noexcept;
  /// True if the process has ended, or has left and has no board any more: then it may end at any time. Costs
  /// a call of the system.
  [[nodiscard]] bool is_gone(std::size_t rank) const noexcept;

  /// Tells the others that this process takes part no more. Does nothing in a forked child.
  void leave() noexcept;

 private:
  struct Cell;
  [[nodiscard]] Cell& cell(std::size_t rank) const noexcept;
  void wait_for_all(const char* what, FunctionRef<bool(std::size_t rank)> is_there) const;

  const ProcessBoardOptions options_;
  const std::uint64_t generation_;
  CommonPages pages_;
  std::uint64_t round_ = 0;
};

}  // namespace penstock
