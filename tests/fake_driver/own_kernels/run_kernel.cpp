#include "own_kernels/gpu.hpp"
#include "state.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

namespace penstock::cuda {

// The GPU's instructions, by the definition of the format.
inline float half_to_float(unsigned bits) {
  const float sign = bits >> 15 != 0 ? -1.0F : 1.0F;
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const float fraction = static_cast<float>(bits & 1023) / 1024.0F;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15));
}

inline unsigned float_to_half(float value) {
  if (std::isnan(value)) return 0x7fff;
  const unsigned sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | 0x7c00;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const auto steps = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return sign | std::min(steps + (static_cast<unsigned>(exponent + 14) << 10), 0x7c00u);
}

inline std::uint64_t nanoseconds_now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1));
}

}  // namespace penstock::cuda

#include "device/cuda/kernels.cu"

namespace fake_cuda {

namespace {

template <typename Arguments>
struct Kernel {
  const char* name;
  void (*function)(Arguments);
};

constexpr Kernel<CopyPiecesArguments> kCopies[] = {{"penstock_copy_pieces", penstock_copy_pieces}};
constexpr Kernel<GatherBytesArguments> kGathers[] = {
    {"penstock_gather_bytes_aligned", penstock_gather_bytes_aligned},
    {"penstock_gather_bytes", penstock_gather_bytes}};
constexpr Kernel<GatherWidenArguments> kWidenings[] = {
    {"penstock_gather_widen_1_2", penstock_gather_widen_1_2},
    {"penstock_gather_widen_1_4", penstock_gather_widen_1_4},
    {"penstock_gather_widen_2_4", penstock_gather_widen_2_4},
    {"penstock_gather_widen", penstock_gather_widen}};

constexpr Kernel<SplitRowsArguments> kSplits[] = {{"penstock_split_rows", penstock_split_rows}};

constexpr Kernel<FillOrderArguments> kOrders[] = {{"penstock_fill_order", penstock_fill_order}};

constexpr Kernel<HashArguments> kHashes[] = {{"penstock_hash", penstock_hash}};

/// The kernels run on the CPU, so addresses of a GPU in their arguments become addresses of the host.
template <typename T>
void to_host(T*& data) {
  if (data == nullptr) return;
  const auto address = reinterpret_cast<Address>(data);
  const Found found = memory().find(address);
  if (found.device != address) throw std::runtime_error("an address that no GPU has");
  data = static_cast<T*>(found.host);
}

template <typename Arguments>
  requires requires(Arguments a) { a.head_rows; }
void rows_to_host(Arguments& a) {
  to_host(a.indices);
  to_host(a.destination);
  if (a.head_rows != 0) to_host(a.head);
  if (a.head_rows == a.source_rows) return;
  const std::uint64_t before = a.head_rows * a.stride_bytes;
  auto* first = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(a.source) + before);
  to_host(first);
  a.source = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(first) - before);
}

void to_host(GatherBytesArguments& a) { rows_to_host(a); }
void to_host(GatherWidenArguments& a) {
  rows_to_host(a);
  to_host(a.scale);
  to_host(a.shift);
}
// The tables hold offsets, not addresses.
void to_host(SplitRowsArguments& a) {
  to_host(a.rows);
  to_host(a.destination);
  to_host(a.values);
  to_host(a.firsts);
}
void to_host(FillOrderArguments& a) { to_host(a.indices); }
void to_host(HashArguments& a) {
  to_host(a.source);
  to_host(a.parts);
}
void to_host(CopyPiecesArguments& a) {
  static std::vector<Piece> pieces;
  to_host(a.pieces);
  pieces.assign(static_cast<const Piece*>(a.pieces), static_cast<const Piece*>(a.pieces) + a.count);
  for (Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    to_host(piece.source);
    to_host(piece.destination);
  }
  a.pieces = pieces.data();
}

template <typename Arguments, std::size_t Count>
bool launch(const Kernel<Arguments> (&kernels)[Count], const std::string& name, const void* arguments,
            unsigned blocks) {
  for (const Kernel<Arguments>& kernel : kernels) {
    if (name != kernel.name) continue;
    auto own = *static_cast<const Arguments*>(arguments);
    to_host(own);
    gpu::Machine::get().launch(kernel.function, blocks, kernel_threads(name), own);
    return true;
  }
  return false;
}

}  // namespace

Result run_kernel(const std::string& name, const void* arguments, unsigned blocks) {
  if (name == "penstock_occupy") {
    penstock_occupy(*static_cast<const OccupyArguments*>(arguments));
    return kSuccess;
  }
  static auto& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  try {
    const bool found =
        launch(kCopies, name, arguments, blocks) || launch(kGathers, name, arguments, blocks) ||
        launch(kWidenings, name, arguments, blocks) || launch(kSplits, name, arguments, blocks) ||
        launch(kOrders, name, arguments, blocks) || launch(kHashes, name, arguments, blocks);
    return found ? kSuccess : kNotFound;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return kIllegalAddress;
  }
}

}  // namespace fake_cuda
