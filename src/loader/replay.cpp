#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/device/topology.hpp>
#include <penstock/loader/replay.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <utility>

namespace penstock {

/// The marks lie behind it.
struct ReplayRows::Head {
  std::atomic<std::uint64_t> samplers;
  alignas(64) std::atomic<std::uint64_t> taken;  ///< numbers, by writers
};

struct ReplayRows::Mark {
  std::atomic<std::uint64_t> state;     ///< 2 (number + 1) of a row, 2 PID + 1 of a claim, or 0
  std::atomic<std::uint64_t> previous;  ///< number + 1 of the row before it in its environment; 0: none
};

namespace {

/// A multiple of every page size: no page has two fields, so that each can be locked by itself.
constexpr std::size_t kRowsAlignment = std::size_t{64} << 10;

/// Writers come as far, beyond the capacity, while a batch is read and none is dropped.
constexpr std::uint64_t slots_for(std::uint64_t capacity) { return capacity + capacity / 16 + 256; }

std::uint64_t mark_of(std::uint64_t number) noexcept { return 2 * (number + 1); }

bool has_ended(std::uint64_t process) noexcept {
  return kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
}

}  // namespace

ReplayRows::ReplayRows(const std::vector<Field>& fields, std::uint64_t capacity, std::optional<int> file)
    : capacity_(capacity), slots_(slots_for(capacity)), latest_(kEnvironments), forks_(fork_generation()) {
  std::size_t row_bytes = sizeof(Mark);
  for (const Field& field : fields) row_bytes += field.sample_bytes();
  if (const std::size_t memory = host_topology().memory_bytes; slots_ > memory / row_bytes) {
    throw OutOfMemory("host memory, for replayed rows", row_bytes, 0, memory,
                      fmt::format("{} rows do not fit: make the capacity smaller.", slots_));
  }
  std::vector<std::size_t> places{align_up(sizeof(Head) + slots_ * sizeof(Mark), kRowsAlignment)};
  for (const Field& field : fields) {
    places.push_back(align_up(places.back() + slots_ * field.sample_bytes(), kRowsAlignment));
  }
  pages_ = std::make_shared<const SharedPages>(file ? SharedPages::attach(*file)
                                                    : SharedPages(places.back(), "penstock-replay"));
  const std::span<std::byte> bytes = pages_->bytes();
  if (bytes.size() != places.back()) throw InvalidArgument("The file has another size than these rows take.");
  if (!file) interleave_memory(bytes.data(), bytes.size());
  std::vector<FieldReaderPtr> readers;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    readers.push_back(
        read_array(fields[f], bytes.subspan(places[f], slots_ * fields[f].sample_bytes()), pages_));
  }
  dataset_.emplace(std::move(readers));
}

ReplayRows::Head& ReplayRows::head() const noexcept {
  return *reinterpret_cast<Head*>(pages_->bytes().data());
}

ReplayRows::Mark& ReplayRows::mark(std::uint64_t number) const noexcept {
  return reinterpret_cast<Mark*>(pages_->bytes().data() + sizeof(Head))[number % slots_];
}

std::uint64_t ReplayRows::size() const noexcept {
  return std::min(head().taken.load(std::memory_order_acquire), capacity_);
}

/// The number of a row whose slot is this process's from now on.
std::uint64_t ReplayRows::claim() const noexcept {
  const std::uint64_t claimed = 2 * static_cast<std::uint64_t>(getpid()) + 1;
  while (true) {
    const std::uint64_t number = head().taken.fetch_add(1);
    std::atomic<std::uint64_t>& state = mark(number).state;
    std::uint64_t seen = state.load();
    const bool is_free = seen % 2 == 0 ? seen < mark_of(number) : has_ended(seen / 2);
    if (!is_free || !state.compare_exchange_strong(seen, claimed)) continue;
    // Whoever reads a byte that is written from here on finds the number taken.
    std::atomic_thread_fence(std::memory_order_release);
    return number;
  }
}

void ReplayRows::add(const std::vector<const std::byte*>& values,
                     std::span<const std::uint32_t> environments) {
  if (std::ranges::any_of(environments, [](std::uint32_t each) { return each >= kEnvironments; })) {
    throw InvalidArgument(fmt::format("Environments count from 0 to {}.", kEnvironments - 1));
  }
  if (forks_.exchange(fork_generation()) != fork_generation()) {  // they go on in the parent
    for (auto& latest : latest_) latest.store(0, std::memory_order_relaxed);
  }
  for (std::size_t row = 0; row < environments.size(); ++row) {
    std::atomic<std::uint64_t>& latest = latest_[environments[row]];
    const std::uint64_t number = claim();
    mark(number).previous.store(latest.load(std::memory_order_relaxed), std::memory_order_relaxed);
    for (std::size_t f = 0; f < dataset_->field_count(); ++f) {
      const std::size_t bytes = dataset_->sample_bytes(f);
      auto* const samples = const_cast<std::byte*>(dataset_->memory(f).data());
      std::memcpy(samples + number % slots_ * bytes, values[f] + row * bytes, bytes);
    }
    mark(number).state.store(mark_of(number), std::memory_order_release);
    latest.store(number + 1, std::memory_order_relaxed);
  }
}

class ReplaySampler final : public BatchSampler {
 public:
  ReplaySampler(std::shared_ptr<const ReplayRows> rows, const ReplayOptions& options)
      : rows_(std::move(rows)),
        samples_(options.batch_size),
        random_(options.seed + rows_->head().samplers.fetch_add(1) * 0x9E3779B97F4A7C15U) {
    if (options.offsets.empty()) throw InvalidArgument("There are no offsets; use 0 for single rows.");
    const auto [first, last] = std::ranges::minmax(options.offsets);
    reach_ = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
    if (reach_ >= rows_->capacity_) {
      throw InvalidArgument(fmt::format("Samples of the rows {} to {} do not fit a capacity of {}.", first,
                                        last, rows_->capacity_));
    }
    for (const std::int64_t offset : options.offsets)
      back_.push_back(static_cast<std::size_t>(last - offset));
  }

  void start_epoch(std::uint64_t /*epoch*/) override {}

  bool next(std::vector<std::uint64_t>& indices) override {
    oldest_ = UINT64_MAX;
    for (std::uint64_t sample = 0; sample < samples_; ++sample) draw(indices);
    return true;
  }

  /// The number of the batch's oldest row.
  [[nodiscard]] std::uint64_t reading_epoch(std::uint64_t /*epoch*/) const override { return oldest_; }
  [[nodiscard]] bool may_tear() const noexcept override { return true; }
  [[nodiscard]] bool is_whole(std::uint64_t oldest) const override {
    std::atomic_thread_fence(std::memory_order_acquire);  // the rows were read before the number
    return rows_->head().taken.load() <= oldest + rows_->slots_;
  }

 private:
  /// How often rows are drawn at random. If that many end no sample, one that does is searched for.
  static constexpr std::uint64_t kTries = 100;

  /// Appends the slots of a sample.
  void draw(std::vector<std::uint64_t>& indices) {
    std::uint64_t begin = 0;
    std::uint64_t count = 0;
    std::uint64_t turns = 0;
    do {
      const std::uint64_t end = rows_->head().taken.load();
      count = std::min(end, rows_->capacity_);
      begin = end - count;
      for (std::uint64_t i = 0; count > 0 && i < kTries + count; ++i) {
        if (!follow(begin, begin + (i < kTries ? random_() : i) % count)) continue;
        for (const std::size_t back : back_) indices.push_back(chain_[back] % rows_->slots_);
        oldest_ = std::min(oldest_, std::ranges::min(chain_));
        return;
      }
      // On a busy host, writers may have overwritten all of these rows meanwhile.
    } while (rows_->head().taken.load() > begin + rows_->slots_ && ++turns < kTries);
    throw InvalidArgument(
        fmt::format("Of {} rows, no {} follow each other in one environment, as the offsets need: add rows.",
                    count, reach_ + 1));
  }

  /// Fills the chain with the rows of a sample, from its last row on. False if one is before `begin`, or is
  /// not there. If the last row is overwritten meanwhile, others may be wrong: it is then the oldest.
  bool follow(std::uint64_t begin, std::uint64_t number) {
    chain_.clear();
    while (true) {
      const ReplayRows::Mark& mark = rows_->mark(number);
      if (mark.state.load(std::memory_order_acquire) != mark_of(number)) return false;
      chain_.push_back(number);
      if (chain_.size() > reach_) return true;
      const std::uint64_t previous = mark.previous.load(std::memory_order_relaxed);
      if (previous <= begin) return false;
      number = previous - 1;
    }
  }

  const std::shared_ptr<const ReplayRows> rows_;
  const std::uint64_t samples_;
  std::uint64_t reach_ = 0;        // rows from a sample's first to its last
  std::vector<std::size_t> back_;  // from a sample's last row to those that are wanted
  std::mt19937_64 random_;
  std::vector<std::uint64_t> chain_;
  std::uint64_t oldest_ = 0;  // row of the latest batch
};

LoaderOptions sample_rows(std::shared_ptr<const ReplayRows> rows, const ReplayOptions& options) {
  LoaderOptions loader;
  loader.batch_size = options.batch_size * options.offsets.size();
  loader.batch_sampler = std::make_shared<ReplaySampler>(std::move(rows), options);
  loader.prefetch_depth = 1;  // rows that are drawn long before they are read may be overwritten
  loader.data_may_change = true;
  loader.copy_limit_bytes = 0;  // no other data shares a page with a field
  return loader;
}

}  // namespace penstock
