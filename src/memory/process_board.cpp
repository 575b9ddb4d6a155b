#include "core/shared/pause.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/memory/process_board.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

namespace penstock {

/// A process's part of the board. Only that process writes to it. The texts of two rounds: a process that is
/// a round ahead has not overwritten the text that a slower one still reads, and none is two rounds ahead.
struct alignas(4096) ProcessBoard::Cell {
  struct Text {
    std::uint64_t bytes = 0;
    std::array<char, kLongestText> data;
  };
  std::atomic<std::uint64_t> process;
  std::atomic<std::uint64_t> left;
  std::atomic<std::uint64_t> complains;
  std::atomic<std::uint64_t> round;  ///< rounds of `exchange` that the process has begun
  alignas(64) std::array<std::atomic<std::uint64_t>, kWords> words;
  alignas(64) std::array<Text, 2> texts;
  Text complaint;
};

namespace {

constexpr std::chrono::milliseconds kBetweenQuestions{50};
// So that a time that stands for "for ever" can be added to another.
constexpr std::chrono::hours kLongestTimeout{24 * 365};

/// The lock of a rank's byte of the file. It is the process's own: a forked child does not have it.
struct flock lock_of(std::size_t rank) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(rank);
  lock.l_len = 1;
  return lock;
}

/// `place`, or the beginning of the character that it is within, if the text is UTF-8.
std::size_t character_at(std::string_view text, std::size_t place) {
  while (place > 0 && place < text.size() && (static_cast<unsigned char>(text[place]) & 0xC0U) == 0x80U)
    --place;
  return std::min(place, text.size());
}

/// The text around a place in it.
std::string excerpt(const std::string& text, std::size_t place) {
  constexpr std::size_t kBefore = 300;
  constexpr std::size_t kMost = 600;
  const std::size_t begin = character_at(text, place - std::min(place, kBefore));
  const std::size_t end = character_at(text, begin + kMost);
  return fmt::format("{}{}{}", begin > 0 ? "..." : "", text.substr(begin, end - begin),
                     end < text.size() ? "..." : "");
}

ProcessBoardOptions checked(ProcessBoardOptions options) {
  if (options.rank >= options.meeting.processes) {
    throw InvalidArgument(fmt::format("rank {} of a group of {} processes was given; ranks count from 0",
                                      options.rank, options.meeting.processes));
  }
  options.timeout = std::min<std::chrono::milliseconds>(options.timeout, kLongestTimeout);
  return options;
}

}  // namespace

ProcessBoard::Cell& ProcessBoard::cell(std::size_t rank) const noexcept {
  return reinterpret_cast<Cell*>(pages_.pages->bytes().data())[rank];
}

ProcessBoard::ProcessBoard(ProcessBoardOptions options)
    : options_(checked(std::move(options))), generation_(fork_generation()) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  const std::string note = fmt::format("a board of {} cells of {} bytes", size(), sizeof(Cell));
  // Pages of zeros are cells of zeros.
  pages_ = share_pages(options_.meeting, [&] {
    return MadePages{std::make_shared<const SharedPages>(size() * sizeof(Cell), "penstock-board"), note};
  });
  if (pages_.note != note) {
    throw InvalidArgument(
        fmt::format("the processes of a group differ in its size or in their version of penstock: {}, and {}",
                    note, pages_.note));
  }
  struct flock lock = lock_of(rank());
  std::uint64_t nobody = 0;
  const bool is_mine =
      fcntl(pages_.pages->file(), F_SETLK, &lock) == 0 &&
      cell(rank()).process.compare_exchange_strong(nobody, static_cast<std::uint64_t>(getpid()));
  if (!is_mine) {
    throw InvalidArgument(fmt::format("two processes of a group have rank {}: give each its own", rank()));
  }
  wait_for_all("has not come", [&](std::size_t other) {
    const pid_t there = process(other);
    if (there == getpid() && other != rank()) {
      throw InvalidArgument(fmt::format(
          "ranks {} and {} of the group are one process: use a group of devices, or a process for "
          "each rank",
          rank(), other));
    }
    return there != 0;
  });
}

ProcessBoard::~ProcessBoard() { leave(); }

pid_t ProcessBoard::process(std::size_t rank) const noexcept {
  return static_cast<pid_t>(cell(rank).process.load(std::memory_order_acquire));
}

void ProcessBoard::set(std::size_t word, std::uint64_t value) noexcept {
  cell(rank()).words[word].store(value, std::memory_order_release);
}

std::uint64_t ProcessBoard::get(std::size_t rank, std::size_t word) const noexcept {
  return cell(rank).words[word].load(std::memory_order_acquire);
}

void ProcessBoard::wait_for_all(const char* what, FunctionRef<bool(std::size_t rank)> is_there) const {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + options_.timeout;
  auto question = Clock::now() + kBetweenQuestions;
  for (std::size_t other = 0; other < size(); ++other) {
    nap_until([&] {
      if (is_there(other)) return true;
      // Any process that is missing keeps all others from going on.
      for (std::size_t each = 0; each < size(); ++each) {
        if (each == rank() || process(each) == 0 || is_there(each)) continue;
        // Asked again last: it may have done its part and gone meanwhile.
        if ((has_ended(each) || has_left(each)) && !is_there(each)) throw Error(trouble(each));
      }
      const auto now = Clock::now();
      if (now > end) {
        throw Error(
            fmt::format("Rank {} of the group {} within {} s. All its processes must do the same, on "
                        "one host, in the same order.",
                        other, what, static_cast<double>(options_.timeout.count()) / 1000));
      }
      if (options_.meeting.while_waiting && now > question) {
        options_.meeting.while_waiting();
        question = Clock::now() + kBetweenQuestions;
      }
      return false;
    });
  }
}

std::vector<std::string> ProcessBoard::exchange(std::string_view text) {
  if (text.size() > kLongestText) {
    throw InvalidArgument(fmt::format("processes exchange texts of at most {}, and this one has {}",
                                      format_bytes(kLongestText), format_bytes(text.size())));
  }
  Cell& mine = cell(rank());
  Cell::Text& place = mine.texts[++round_ % 2];
  place.bytes = text.size();
  std::ranges::copy(text, place.data.begin());
  mine.round.store(round_, std::memory_order_release);
  wait_for_all("has not followed the others", [&](std::size_t other) {
    return cell(other).round.load(std::memory_order_acquire) >= round_;
  });
  std::vector<std::string> texts;
  for (std::size_t other = 0; other < size(); ++other) {
    const Cell::Text& theirs = cell(other).texts[round_ % 2];
    texts.emplace_back(theirs.data.data(), std::min<std::uint64_t>(theirs.bytes, kLongestText));
  }
  return texts;
}

void ProcessBoard::agree(const std::string& text) {
  // The rest of a long text is in its hash.
  const std::string rest = fmt::format("... (hash {:016x})", std::hash<std::string>{}(text));
  const bool fits = text.size() <= kLongestText;
  const std::vector<std::string> texts =
      exchange(fits ? text : text.substr(0, character_at(text, kLongestText - rest.size())) + rest);
  const std::string& first = texts.front();
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == first) continue;
    const auto place =
        static_cast<std::size_t>(std::ranges::mismatch(first, texts[rank]).in1 - first.begin());
    throw InvalidArgument(
        fmt::format("The processes of a group must do the same with the same data. Rank 0: {}. Rank {}: {}.",
                    excerpt(first, place), rank, excerpt(texts[rank], place)));
  }
}

void ProcessBoard::complain(std::string_view text) noexcept {
  Cell& mine = cell(rank());
  text = text.substr(0, character_at(text, kLongestText));
  mine.complaint.bytes = text.size();
  std::ranges::copy(text, mine.complaint.data.begin());
  mine.complains.store(text.empty() ? 0 : 1, std::memory_order_release);
}

bool ProcessBoard::has_left(std::size_t rank) const noexcept {
  return cell(rank).left.load(std::memory_order_acquire) != 0;
}

bool ProcessBoard::has_ended(std::size_t rank) const noexcept {
  // Asked again: it may leave and give its lock back meanwhile.
  return !has_left(rank) && is_gone(rank) && !has_left(rank);
}

bool ProcessBoard::is_gone(std::size_t rank) const noexcept {
  if (rank == this->rank()) return false;
  struct flock lock = lock_of(rank);
  return fcntl(pages_.pages->file(), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

std::string ProcessBoard::trouble(std::size_t rank) const {
  const Cell& theirs = cell(rank);
  if (theirs.complains.load(std::memory_order_acquire) != 0) {
    const auto bytes = std::min<std::uint64_t>(theirs.complaint.bytes, kLongestText);
    return fmt::format("Rank {} of the group (PID {}) failed: {}", rank, process(rank),
                       std::string_view(theirs.complaint.data.data(), bytes));
  }
  if (has_left(rank)) {
    for (std::size_t other = 0; other < size(); ++other) {
      if (has_ended(other)) return trouble(other);
    }
    return fmt::format(
        "Rank {} of the group (PID {}) has left, and this one needs more of it. It has closed its loader, or "
        "goes on without the group.",
        rank, process(rank));
  }
  if (has_ended(rank)) {
    return fmt::format("Rank {} of the group (PID {}) has ended. Its own error, or the system, says why.",
                       rank, process(rank));
  }
  return {};
}

void ProcessBoard::leave() noexcept {
  if (generation_ == fork_generation()) cell(rank()).left.store(1, std::memory_order_release);
}

}  // namespace penstock
