#include "feed_run.hpp"

#include "cli/shared/signals.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <chrono>

namespace penstock::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Marks of the run, spread evenly over its batches.
class Marks {
 public:
  explicit Marks(std::vector<FeedMark>& marks) : marks_(marks) { marks_.push_back({}); }

  void add(const FeedMark& mark) {
    last_ = mark;
    if (++batches_ % stride_ != 0) return;
    marks_.push_back(mark);
    if (marks_.size() <= kMost) return;
    for (std::size_t i = 0; 2 * i < marks_.size(); ++i) marks_[i] = marks_[2 * i];
    marks_.resize((marks_.size() + 1) / 2);
    stride_ *= 2;
  }
  void finish() {
    if (batches_ % stride_ != 0) marks_.push_back(last_);
  }

 private:
  static constexpr std::size_t kMost = 1024;
  std::vector<FeedMark>& marks_;
  FeedMark last_{};
  std::uint64_t batches_ = 0;
  std::uint64_t stride_ = 1;
};

/// Shows progress: on a terminal ten times a second, elsewhere a line for each epoch and every ten seconds.
class Teller {
 public:
  Teller(Progress& progress, bool terminal, std::uint64_t epochs, std::uint64_t samples)
      : progress_(progress), terminal_(terminal), epochs_(epochs), samples_(static_cast<double>(samples)) {}

  void begin_epoch(std::uint64_t epoch, const FeedMark& mark) {
    epoch_ = epoch;
    if (!terminal_ || epoch == 0) progress_.update(fraction(mark), short_text());
  }
  void tell(const FeedMark& mark) {
    if (mark.seconds - told_ < (terminal_ ? 0.1 : 10)) return;
    told_ = mark.seconds;
    progress_.update(fraction(mark), long_text(mark));
  }

 private:
  [[nodiscard]] double fraction(const FeedMark& mark) const {
    return samples_ > 0 ? static_cast<double>(mark.samples) / samples_ : 0;
  }
  [[nodiscard]] std::string short_text() const { return fmt::format("epoch {} of {}", epoch_ + 1, epochs_); }
  [[nodiscard]] std::string long_text(const FeedMark& mark) const {
    if (mark.samples == 0 || mark.seconds <= 0) return short_text();
    const double rate = static_cast<double>(mark.samples) / mark.seconds;
    const double left = (samples_ - static_cast<double>(mark.samples)) / rate;
    return fmt::format("epoch {}/{}, {} samples/s, {} GB/s, {} left", epoch_ + 1, epochs_, rate_text(rate),
                       format_rate(static_cast<double>(mark.delivered_bytes) / mark.seconds),
                       left < 100 ? fmt::format("{:.0f} s", left) : fmt::format("{:.0f} min", left / 60));
  }

  Progress& progress_;
  const bool terminal_;
  const std::uint64_t epochs_;
  const double samples_;
  std::uint64_t epoch_ = 0;
  double told_ = 0;
};

class Feeder {
 public:
  Feeder(Loader& loader, Verifier* verifier, Progress& progress, bool terminal, FeedAccount& account)
      : loader_(loader),
        verifier_(verifier),
        account_(account),
        stream_(loader.device().create_stream()),
        marks_(account.marks),
        teller_(progress, terminal, account.options.epochs,
                loader.samples_per_epoch() * account.options.epochs) {}

  void feed() {
    const std::uint64_t epochs = account_.options.epochs;
    for (std::uint64_t epoch = 0; epoch < epochs && !SignalWatch::requested(); ++epoch) {
      teller_.begin_epoch(epoch, now_);
      account_.epochs.push_back({.epoch = epoch, .seconds = seconds_since(begin_)});
      while (!SignalWatch::requested()) {
        if (!feed_batch()) {
          account_.epochs.back().complete = true;
          break;
        }
      }
    }
    account_.interrupted = account_.epochs.size() < epochs || !account_.epochs.back().complete;
    if (verifier_ != nullptr) verifier_->finish();
    stream_.synchronize();
  }

  /// Also after a failure.
  void account() {
    marks_.finish();
    account_.total = loader_.stats();
    account_.timeline = loader_.timeline();
    for (FeedEpoch& epoch : account_.epochs) {
      if (const auto statistics = loader_.epoch_stats(epoch.epoch)) epoch.statistics = *statistics;
    }
    if (verifier_ != nullptr) account_.compared = verifier_->account();
    account_.verified = account_.trouble.empty() && verifier_ != nullptr && given_ != 0 &&
                        account_.compared.batches == given_;
  }

 private:
  bool feed_batch() {
    auto batch = loader_.next(stream_);
    if (!batch) return false;
    ++given_;
    const double step = account_.options.step_ms / 1000;
    if (step > 0) stream_.occupy(step);
    if (verifier_ != nullptr) verifier_->check(*batch, stream_);
    now_.seconds = seconds_since(begin_);
    now_.samples += batch->size();
    for (std::size_t i = 0; i < batch->field_count(); ++i) now_.delivered_bytes += batch->field(i).bytes;
    batch->release();
    marks_.add(now_);
    teller_.tell(now_);
    return true;
  }

  Loader& loader_;
  Verifier* verifier_;
  FeedAccount& account_;
  Stream stream_;
  Marks marks_;
  Teller teller_;
  Clock::time_point begin_ = Clock::now();
  FeedMark now_{};
  std::uint64_t given_ = 0;
};

}  // namespace

void run_epochs(Loader& loader, Verifier* verifier, Progress& progress, bool terminal, FeedAccount& account) {
  Feeder feeder(loader, verifier, progress, terminal, account);
  try {
    feeder.feed();
  } catch (const std::exception& error) {
    account.trouble = error.what();
    feeder.account();
    throw;
  }
  feeder.account();
}

}  // namespace penstock::cli
