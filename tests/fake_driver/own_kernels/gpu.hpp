#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/// Enough of a GPU to run the kernels' source on a CPU. Every thread of a block is a fiber, and the threads
/// of a warp wait for each other at the warp's operations. Blocks run one by one. This tests the kernels'
/// indices, alignment, conversions and reach. It cannot test races within a warp, or speed.
namespace gpu {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

class Machine {
 public:
  static Machine& get() {
    static Machine machine;
    return machine;
  }

  template <typename Kernel, typename Arguments>
  void launch(Kernel kernel, unsigned blocks, unsigned threads, const Arguments& arguments) {
    grid.x = blocks;
    for (block.x = 0; block.x < blocks; ++block.x) run_block(threads, [&] { kernel(arguments); });
  }

  /// Waits until all lanes of the caller's warp are here. Every lane passes `value`; the result holds all.
  const std::uint64_t* exchange(std::uint64_t value) {
    Fiber& me = *current_;
    Warp& warp = warps_[me.number / 32];
    warp.values[warp.generation % 2][me.number % 32] = value;
    const unsigned generation = warp.generation;
    if (++warp.arrived == 32) {
      warp.arrived = 0;
      ++warp.generation;
    }
    while (warp.generation == generation) yield();
    return warp.values[generation % 2];
  }

  Index grid, block, thread;

 private:
  struct Warp {
    unsigned arrived = 0;
    unsigned generation = 0;
    std::uint64_t values[2][32] = {};
  };
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack;
    unsigned number = 0;
    bool done = false;
  };

  void run_block(unsigned threads, const std::function<void()>& body) {
    body_ = &body;
    error_.clear();
    warps_.assign((threads + 31) / 32, {});
    while (fibers_.size() < threads) {
      fibers_.push_back(std::make_unique<Fiber>());
      fibers_.back()->stack.resize(32 * 1024);
    }
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& fiber = *fibers_[i];
      fiber.number = i;
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &Machine::enter, 0);
    }
    for (unsigned left = threads; left != 0;) {
      progress_ = false;
      for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = *fibers_[i];
        if (fiber.done) continue;
        current_ = &fiber;
        thread.x = i;
        const unsigned before = warps_[i / 32].generation + warps_[i / 32].arrived;
        swapcontext(&scheduler_, &fiber.context);
        if (fiber.done) --left;
        progress_ = progress_ || fiber.done || warps_[i / 32].generation + warps_[i / 32].arrived != before;
      }
      if (!error_.empty()) throw std::runtime_error(error_);
      if (!progress_) throw std::runtime_error("lanes of a warp wait for one that never comes");
    }
  }

  void yield() { swapcontext(&current_->context, &scheduler_); }

  static void enter() {
    Machine& machine = get();
    try {
      (*machine.body_)();
    } catch (const std::exception& error) {
      machine.error_ = error.what();
    }
    machine.current_->done = true;
  }

  ucontext_t scheduler_{};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  Fiber* current_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  bool progress_ = false;
  std::string error_;
};

}  // namespace gpu

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename T>
T __ldg(const T* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) throw std::runtime_error("misaligned load");
  T value;
  std::memcpy(static_cast<void*>(&value), address, sizeof(T));
  return value;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) >> (bits & 31));
}

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}

inline int __ffs(int value) { return __builtin_ffs(value); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }

inline unsigned __float_as_uint(float value) {
  unsigned bits = 0;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float __uint_as_float(unsigned bits) {
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline void __syncwarp() { gpu::Machine::get().exchange(0); }

template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned by) {
  const unsigned lane = gpu::Machine::get().thread.x % 32;
  const std::uint64_t* all = gpu::Machine::get().exchange(value);
  return static_cast<T>(lane + by < 32 ? all[lane + by] : value);
}

inline unsigned __shfl_sync(unsigned, unsigned value, unsigned lane) {
  return static_cast<unsigned>(gpu::Machine::get().exchange(value)[lane]);
}

inline unsigned __ballot_sync(unsigned, bool vote) {
  const std::uint64_t* all = gpu::Machine::get().exchange(vote ? 1 : 0);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) votes |= static_cast<unsigned>(all[lane]) << lane;
  return votes;
}

#define gridDim (gpu::Machine::get().grid)
#define blockIdx (gpu::Machine::get().block)
#define threadIdx (gpu::Machine::get().thread)
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
