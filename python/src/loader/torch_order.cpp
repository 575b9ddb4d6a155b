#include "loader/torch_order.hpp"

#include "core/shared/start_thread.hpp"
#include "interpreter_lock.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/fork.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

using Block = std::vector<std::int64_t>;
using Numbers = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;
// The first block comes soon. Larger ones are taken more seldom.
constexpr std::size_t kFirstNumbers = 4096;
constexpr std::size_t kMostInBlock = std::size_t{1} << 16;

/// The first `wanted` numbers of `torch.randperm(count)` on the CPU, a block at a time. PyTorch shuffles from
/// the front, so a number is final once its place was reached (randperm_cpu in
/// ATen/native/TensorFactories.cpp).
class Shuffle {
 public:
  Shuffle(std::uint64_t seed, std::uint32_t count, std::uint32_t wanted)
      : random_(static_cast<std::uint32_t>(seed)),
        count_(count),
        wanted_(std::min(count, wanted)),
        order_(std::make_unique_for_overwrite<std::uint32_t[]>(count)) {}

  /// Call it first. It touches the memory of the whole order.
  void begin() { std::iota(&order_[0], &order_[count_], 0); }

  /// Empty at the end.
  void next(Block& block) {
    block.resize(std::min(wanted_ - given_, most_));
    most_ = std::min(2 * most_, kMostInBlock);
    std::array<std::uint32_t, kAhead> places;
    for (std::size_t begin = 0; begin < block.size(); begin += kAhead) {
      const std::size_t count = std::min(kAhead, block.size() - begin);
      for (std::size_t i = 0; i < count; ++i) {
        const auto place = static_cast<std::uint32_t>(given_ + i);
        const auto left = static_cast<std::uint32_t>(count_) - place;
        places[i] = left > 1 ? place + random_() % left : place;
        __builtin_prefetch(&order_[places[i]], 1);
      }
      for (std::size_t i = 0; i < count; ++i, ++given_) {
        std::swap(order_[given_], order_[places[i]]);
        block[begin + i] = order_[given_];
      }
    }
  }

 private:
  static constexpr std::size_t kAhead = 64;  // so many cache misses overlap

  /// std::mt19937 with words of 32 bits. Its own have 64 in GNU's library: with remainders 7.5 ns, not 2.9.
  using Random = std::mersenne_twister_engine<std::uint32_t, 32, 624, 397, 31, 0x9908b0df, 11, 0xffffffff, 7,
                                              0x9d2c5680, 15, 0xefc60000, 18, 1812433253>;

  Random random_;
  const std::size_t count_;
  const std::size_t wanted_;
  const std::unique_ptr<std::uint32_t[]> order_;
  std::size_t given_ = 0;
  std::size_t most_ = kFirstNumbers;
};

/// Draws a shuffled order on a thread of its own, a block ahead: the thread that asks runs the training loop.
class TorchOrder {
 public:
  /// PyTorch draws 64 bits for each number of a longer order.
  static constexpr std::uint32_t kMostNumbers = 0xFFFF'FFFF / 20;

  TorchOrder(std::uint64_t seed, std::uint32_t count, std::uint32_t wanted)
      : count_(count), state_(std::make_unique<State>(seed, count, wanted)) {
    state_->thread = start_thread("penstock-order", [state = state_.get()] { state->draw_all(); });
  }
  ~TorchOrder() {
    if (state_
            ->is_forked()) {  // the thread is the parent's: it may have held the lock, and its stack is gone
      static_cast<void>(state_.release());
      return;
    }
    state_->stop();
    state_->thread.join();
  }
  TorchOrder(const TorchOrder&) = delete;
  TorchOrder& operator=(const TorchOrder&) = delete;

  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  /// The next numbers. Throws stop_iteration at the end.
  Numbers next() {
    auto block = std::make_unique<Block>();
    {
      const Unlocked unlocked;
      state_->take(*block);
    }
    if (block->empty()) throw nb::stop_iteration();
    Block& numbers = *block;
    const nb::capsule owner(block.release(), [](void* self) noexcept { delete static_cast<Block*>(self); });
    return Numbers(numbers.data(), {numbers.size()}, owner);
  }

 private:
  struct State {
    State(std::uint64_t seed, std::uint32_t count, std::uint32_t wanted) : shuffle(seed, count, wanted) {}

    [[nodiscard]] bool is_forked() const { return generation != fork_generation(); }

    /// The last block is empty, and stays.
    void draw_all() {
      shuffle.begin();
      Block block;
      do {
        shuffle.next(block);
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopped || !is_drawn; });
        if (stopped) return;
        is_last = block.empty();
        drawn.swap(block);
        is_drawn = true;
        lock.unlock();
        changed.notify_all();
      } while (!is_last);
    }

    void take(Block& block) {
      if (is_forked()) throw Error("this order was begun before the process was forked; begin a new epoch");
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return is_drawn; });
      block.swap(drawn);
      is_drawn = is_last;
      lock.unlock();  // or who wakes would wait for it
      changed.notify_all();
    }

    void stop() {
      const std::lock_guard lock(mutex);
      stopped = true;
      changed.notify_all();
    }

    const std::uint64_t generation = fork_generation();
    Shuffle shuffle;  // only the thread's
    std::mutex mutex;
    std::condition_variable changed;
    Block drawn;  // this and what follows: guarded by the mutex
    bool is_drawn = false;
    bool is_last = false;
    bool stopped = false;
    std::thread thread;
  };

  const std::uint32_t count_;
  std::unique_ptr<State> state_;
};

}  // namespace

void bind_torch_order(nb::module_& module) {
  nb::class_<TorchOrder>(
      module, "TorchOrder",
      "Iterates over the first `wanted` numbers that torch.randperm(count) draws from a new "
      "generator of this seed, in blocks. For counts below `most`.")
      .def(nb::init<std::uint64_t, std::uint32_t, std::uint32_t>(), nb::arg("seed"), nb::arg("count"),
           nb::arg("wanted"))
      .def("__iter__", [](nb::handle self) { return self; })
      .def("__next__", &TorchOrder::next)
      .def_prop_ro("below", &TorchOrder::count, "All numbers are below it.")
      .def_ro_static("most", &TorchOrder::kMostNumbers);
}

}  // namespace penstock::python
