#include "core/shared/wait_quietly.hpp"
#include "loader/batch_parts.hpp"
#include "loader/link_weights.hpp"
#include "loader/make_line.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>
#include <penstock/data/batch_sampler.hpp>
#include <penstock/loader/fill_ranks.hpp>
#include <penstock/transfer/destination.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

// To meet, and to map the memory of the others, takes longer than the links of the others save.
constexpr std::size_t kLeastInRanks = std::size_t{1} << 20;
constexpr std::size_t kLargestPart = std::size_t{16} << 20;
constexpr std::size_t kSmallestPart = std::size_t{256} << 10;
// Of each process: the next parts cross the links while those before them are copied on.
constexpr std::size_t kLeastParts = 8;
// Of a part, for the threads that fill it.
constexpr std::size_t kSamples = 32;
constexpr std::size_t kPage = 4096;
// Of the loader's rings: of whole batches, with a part of each process, and of this process's own parts. It
// also has two parts where the others read them.
constexpr std::size_t kSlots = 3;
constexpr std::size_t kPartsRead = 2;
// A ring takes its memory in pieces of at least this size.
constexpr std::size_t kLeastSlot = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kBetweenQuestions{50};

/// Words of the board that a process sets once.
enum Word : std::size_t { kCannotReach, kHasWarned };

/// The bytes of blocks, one block after the other, as samples of equal size. The end of the
/// last sample is not written.
class FilledBlocks final : public FieldReader {
 public:
  /// `split`: of a batch among `processes`. A part has at most `room` bytes: kSmallestPart or more.
  FilledBlocks(std::vector<FilledBlock> blocks, std::size_t processes, const BatchSplit& split,
               std::size_t room)
      : blocks_(std::move(blocks)) {
    for (const FilledBlock& block : blocks_) {
      begins_.push_back(bytes_);
      bytes_ += block.bytes;
    }
    const std::size_t part =
        std::clamp(bytes_ / processes / kLeastParts, kSmallestPart, std::min(room, kLargestPart));
    const std::size_t sample = align_up(part / kSamples, kPage);
    field_ = {.name = "bytes", .dtype = DType::uint8, .shape = {sample}};
    batch_ = std::min(split.batch_of(part / sample), sample_count());
  }

  /// Samples of a batch: a part for each process.
  [[nodiscard]] std::uint64_t batch() const noexcept { return batch_; }

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override {
    return (bytes_ + field_.shape[0] - 1) / field_.shape[0];
  }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind /*stores*/) const override {
    const std::size_t sample = field_.shape[0];
    for (const std::uint64_t index : indices) {
      const std::span<std::byte> to = destination.first(sample);
      destination = destination.subspan(sample);
      for_each_run(static_cast<std::size_t>(index) * sample, sample,
                   [&](const FilledBlock& block, std::size_t begin, std::size_t at, std::size_t count) {
                     block.fill(begin, to.subspan(at, count));
                   });
    }
  }

  /// Calls `run(block, offset in the block, bytes from `offset` to it, bytes of it)` for the blocks within
  /// `count` bytes from `offset` on.
  template <typename Run>
  void for_each_run(std::size_t offset, std::size_t count, Run&& run) const {
    auto i = static_cast<std::size_t>(std::ranges::upper_bound(begins_, offset) - begins_.begin()) - 1;
    for (; i < blocks_.size() && begins_[i] < offset + count; ++i) {
      const std::size_t begin = std::max(begins_[i], offset);
      const std::size_t end = std::min(begins_[i] + blocks_[i].bytes, offset + count);
      if (begin < end) run(blocks_[i], begin - begins_[i], begin - offset, end - begin);
    }
  }

 private:
  std::vector<FilledBlock> blocks_;
  std::vector<std::size_t> begins_;
  std::size_t bytes_ = 0;
  Field field_;
  std::uint64_t batch_ = 0;
};

/// All samples in order, once: nothing is read ahead of its end.
class OnceInOrder final : public BatchSampler {
 public:
  OnceInOrder(std::uint64_t samples, std::uint64_t batch) : samples_(samples), batch_(batch) {}
  void start_epoch(std::uint64_t /*epoch*/) override { drawn_ = 0; }
  bool next(std::vector<std::uint64_t>& indices) override {
    indices.resize(static_cast<std::size_t>(std::min(batch_, samples_ - drawn_)));
    std::iota(indices.begin(), indices.end(), drawn_);
    drawn_ += indices.size();
    return !indices.empty();
  }

 private:
  const std::uint64_t samples_;
  const std::uint64_t batch_;
  std::uint64_t drawn_ = 0;
};

/// The copies into the blocks, which have ended when it goes.
class CopiesToBlocks {
 public:
  CopiesToBlocks(const Device& device, const Stream* after) : stream_(device.create_stream()) {
    if (after == nullptr) return;
    Event before = device.create_event();
    before.record(*after);
    stream_.wait(before);
  }
  ~CopiesToBlocks() {
    static_cast<void>(wait_quietly([&] { stream_.synchronize(); }));
  }
  CopiesToBlocks(const CopiesToBlocks&) = delete;
  CopiesToBlocks& operator=(const CopiesToBlocks&) = delete;

  [[nodiscard]] const Stream& stream() const noexcept { return stream_; }

 private:
  const Stream stream_;
};

/// Throws Error if a process does not come any more to the place where a loader is made.
void refuse_missing(const ProcessBoard& board) {
  for (std::size_t rank = 0; rank < board.size(); ++rank) {
    if (board.has_left(rank) || board.has_ended(rank)) throw Error(board.trouble(rank));
  }
}

/// The bytes that a part may have: all that a process's device needs at once is at most half of its free
/// memory. The same in all processes.
std::size_t room_for_a_part(const Device& device, ProcessBoard& board) {
  std::size_t free = device.memory().free;
  for (const std::string& theirs : board.exchange(std::to_string(free))) {
    free = std::min<std::size_t>(free, std::stoull(theirs));
  }
  return free / 2 / (kSlots * board.size() + kSlots + kPartsRead);
}

/// Closes a line.
struct EndOfLine {
  BatchLine& line;

  ~EndOfLine() {
    try {
      line.close();
    } catch (...) {  // a failed device does no more work
    }
  }
};

/// Once for a board.
void warn(ProcessBoard& board, std::string_view why) {
  if (board.get(board.rank(), kHasWarned) != 0) return;
  board.set(kHasWarned, 1);
  log_warning(fmt::format("Each process of the group brings all bytes over its own link: {}.", why));
}

}  // namespace

bool fill_ranks(const Device& device, ProcessBoard& board, const std::string& facts,
                std::vector<FilledBlock> blocks, const RankFillOptions& options) {
  const std::size_t processes = board.size();
  std::size_t bytes = 0;
  for (const FilledBlock& block : blocks) bytes += block.bytes;
  board.agree(fmt::format("{}; {} bytes", facts, bytes));
  const bool cannot_reach = board.get(board.rank(), kCannotReach) != 0;  // in all processes alike
  if (processes == 1 || bytes < kLeastInRanks || cannot_reach) return false;
  const std::size_t room = room_for_a_part(device, board);
  if (room < kSmallestPart) {
    warn(board, "the device of one has no memory left for the parts of the others");
    return false;
  }
  const BatchSplit split(weights_of_links(options.profile, board));  // as that of the loader
  const auto reader = std::make_shared<const FilledBlocks>(std::move(blocks), processes, split, room);
  const std::size_t slot = static_cast<std::size_t>(reader->batch()) * reader->field().shape[0];
  const auto ask = [&] {
    if (board.options().meeting.while_waiting) board.options().meeting.while_waiting();
  };
  ProcessBoardOptions group = board.options();
  group.meeting.key += ", parts";  // a process that has a new board does not come there
  group.meeting.while_waiting = [&] {
    ask();
    refuse_missing(board);
  };
  std::string why;
  const std::shared_ptr<BatchLine> line = make_line_of_parts(
      Dataset({reader}), Destination::rank(device, group),
      LoaderOptions{.batch_size = reader->batch(),
                    .batch_sampler = std::make_shared<OnceInOrder>(reader->sample_count(), reader->batch()),
                    .prefetch_depth = kSlots - 1,
                    // Half of it is for the ring of whole batches.
                    .device_budget_bytes = 2 * kSlots * std::max(slot, kLeastSlot),
                    .profile = options.profile},
      why);
  if (line == nullptr) {
    board.set(kCannotReach, 1);
    warn(board, fmt::format("they cannot read each other's memory ({})", why));
    return false;
  }
  const EndOfLine end{*line};
  const CopiesToBlocks copies(device, options.after);
  const FunctionRef<void()> while_waiting(ask);
  std::size_t offset = 0;
  std::chrono::steady_clock::time_point asked;
  while (const std::optional<DeviceBatch> batch = line->next(copies.stream(), &while_waiting)) {
    // next() asks only if it waits for long.
    if (const auto now = std::chrono::steady_clock::now(); now - asked > kBetweenQuestions) {
      asked = now;
      ask();
    }
    const DeviceField& field = batch->field(0);
    reader->for_each_run(offset, field.bytes,
                         [&](const FilledBlock& block, std::size_t begin, std::size_t at, std::size_t count) {
                           copies.stream().copy(block.destination + begin, field.data + at, count,
                                                CopyDirection::d2d);
                         });
    offset += field.bytes;
  }
  copies.stream().synchronize();
  return true;
}

}  // namespace penstock
