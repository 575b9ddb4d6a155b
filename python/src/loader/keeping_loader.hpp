#pragma once

#include "interpreter_lock.hpp"
#include "loader/lease_storage.hpp"
#include "loader/python_batch_sampler.hpp"
#include "move/destination.hpp"
#include "signals.hpp"

#include <penstock/loader/loader.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

/// A loader for Python, and the batch that it has given if a signal's handler, such as Ctrl-C, raises before
/// the arrays of the batch are made. That batch comes with the next call. Used under the interpreter's lock.
class KeepingLoader {
 public:
  /// The memory of a batch, on each device that receives; none: the end of an epoch.
  using Leases = std::vector<std::shared_ptr<LeaseStorage>>;

  /// `receivers`: of the devices that receive.
  KeepingLoader(Loader loader, std::vector<std::shared_ptr<Engine>> receivers)
      : receivers_(std::move(receivers)), loader_(std::move(loader)) {
    for (const auto& engine : receivers_) {
      streams_.push_back(std::make_shared<const Stream>(engine->device().create_stream()));
    }
  }
  ~KeepingLoader() {
    // The loader's threads may release the arrays last, and then take the interpreter's lock.
    const Unlocked unlocked;
    loader_.reset();
  }
  KeepingLoader(const KeepingLoader&) = delete;
  KeepingLoader& operator=(const KeepingLoader&) = delete;

  /// For all that a kept batch has no part in.
  [[nodiscard]] Loader* operator->() noexcept { return &*loader_; }

  /// What `make` makes of the leases of the batch that is kept, otherwise of the next one; None at the end of
  /// an epoch. On a GPU later work of PyTorch's current stream waits for the batch. On the host device the
  /// host blocks until it is there. While it waits, it runs signal handlers. Throws their exceptions, and
  /// those of a sampler.
  template <typename Make>
  [[nodiscard]] nb::object next(Make&& make) {
    std::vector<Stream> streams;
    std::vector<std::shared_ptr<const Stream>> own;
    for (std::size_t i = 0; i < receivers_.size(); ++i) {
      streams.push_back(stream_of_next(*receivers_[i], *streams_[i]));
      own.push_back(is_for_torch(*receivers_[i]) ? nullptr : streams_[i]);
    }
    return with_sampler_errors(loader_->options(), [&]() -> nb::object {
      if (kept_.empty()) before_ = loader_->state();
      const UnderWay under_way(is_under_way_);
      Leases leases = std::exchange(kept_, {});
      try {
        {
          const Unlocked unlocked;
          if (leases.empty()) {
            leases = take(streams, own);
          } else {
            for (std::size_t i = 0; i < leases.size(); ++i) leases[i]->hand_to(streams[i].native());
          }
          for (std::size_t i = 0; i < leases.size(); ++i) wait_if_on_host(*receivers_[i], streams[i]);
        }
        if (leases.empty()) return nb::none();
        return make(std::as_const(leases));
      } catch (const nb::python_error&) {
        kept_ = std::move(leases);
        throw;
      }
    });
  }

  /// The place after the batches that next() has given: before the latest one if it is not `handed_out`, and
  /// for a signal's handler that next() runs.
  [[nodiscard]] SamplerState state(bool handed_out) const {
    return kept_.empty() && handed_out && !is_under_way_ ? loader_->state() : before_;
  }

  void start_epoch(std::uint64_t epoch) {
    with_sampler_errors(loader_->options(), [&] { drop_and([&] { loader_->start_epoch(epoch); }); });
  }
  void restore(const SamplerState& state) {
    drop_and([&] { loader_->restore(state); });
  }
  void leave_epoch() {
    drop_and([&] { loader_->leave_epoch(); });
  }
  void close() {
    drop_and([&] { loader_->close(); });
  }

 private:
  class UnderWay {
   public:
    explicit UnderWay(bool& flag) : flag_(flag) { flag_ = true; }
    ~UnderWay() { flag_ = false; }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    bool& flag_;
  };

  /// Called without the interpreter's lock. `own`: see LeaseStorage.
  [[nodiscard]] Leases take(const std::vector<Stream>& streams,
                            const std::vector<std::shared_ptr<const Stream>>& own) {
    Leases leases;
    const auto lease = [&](DeviceBatch& batch) {
      const std::size_t i = leases.size();
      leases.push_back(std::make_shared<LeaseStorage>(receivers_[i]->device(), own[i], std::move(batch)));
    };
    if (streams.size() == 1) {
      if (auto batch = loader_->next(streams.front(), &hear_signals)) lease(*batch);
    } else if (auto batches = loader_->next(streams, &hear_signals)) {
      for (DeviceBatch& batch : *batches) lease(batch);
    }
    return leases;
  }

  /// Drops the batch that is kept, and then calls `change` without the interpreter's lock.
  template <typename Change>
  void drop_and(Change&& change) {
    Leases dropped = std::exchange(kept_, {});
    const Unlocked unlocked;
    dropped.clear();
    change();
  }

  std::vector<std::shared_ptr<Engine>> receivers_;
  std::vector<std::shared_ptr<const Stream>> streams_;  ///< of the receivers
  Leases kept_;
  bool is_under_way_ = false;  ///< next()
  SamplerState before_;        ///< before the latest batch
  std::optional<Loader> loader_;
};

}  // namespace penstock::python
