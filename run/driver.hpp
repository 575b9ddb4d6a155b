#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// The part of the CUDA driver's binary interface that `penstock run` needs besides the copies themselves.
namespace penstock::run {

using Result = int;
using Ordinal = int;
using Address = std::uint64_t;  ///< also of the host: the driver's entries take both in the same way
using Context = void*;
using Stream = void*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotInitialized = 3;
inline constexpr int kRelaxedCapture = 2;
inline const auto kLegacyStream = reinterpret_cast<Stream>(std::uintptr_t{1});
/// The default stream of the thread that names it.
inline const auto kPerThreadStream = reinterpret_cast<Stream>(std::uintptr_t{2});

/// Kinds of memory in a copy of a box; `unified`: the address tells.
enum class MemoryType : int { host = 1, device = 2, array = 3, unified = 4 };

/// An end of a 2D copy: half of CUDA_MEMCPY2D.
struct PlaneSide {
  std::size_t x = 0;  ///< in bytes
  std::size_t y = 0;
  MemoryType type = MemoryType::host;
  Address host = 0;
  Address device = 0;
  void* array = nullptr;
  std::size_t pitch = 0;  ///< from row to row, in bytes
};

/// CUDA_MEMCPY2D.
struct PlaneCopy {
  PlaneSide from;
  PlaneSide to;
  std::size_t width = 0;  ///< in bytes
  std::size_t height = 0;
};

/// An end of a 3D copy: half of CUDA_MEMCPY3D.
struct BoxSide {
  std::size_t x = 0;
  std::size_t y = 0;
  std::size_t z = 0;
  std::size_t level = 0;
  MemoryType type = MemoryType::host;
  Address host = 0;
  Address device = 0;
  void* array = nullptr;
  void* reserved = nullptr;
  std::size_t pitch = 0;
  std::size_t height = 0;  ///< from layer to layer, in rows; 0: there is one layer
};

/// CUDA_MEMCPY3D.
struct BoxCopy {
  BoxSide from;
  BoxSide to;
  std::size_t width = 0;
  std::size_t height = 0;
  std::size_t depth = 0;
};

/// When the driver may read the source of a copy in a batch.
enum class AccessOrder : int { stream = 1, during_call = 2, any = 3 };

/// CUmemcpyAttributes.
struct BatchAttributes {
  AccessOrder order = AccessOrder::stream;
  int locations[4] = {};  ///< hints
  unsigned flags = 0;
};

/// X(member, name in the driver, version whose binary interface is meant, parameters)
#define PENSTOCK_RUN_DRIVER(X)                                                                     \
  X(pointer_get_attributes, cuPointerGetAttributes, 7000, (unsigned, const int*, void**, Address)) \
  X(ctx_get_current, cuCtxGetCurrent, 4000, (Context*))                                            \
  X(ctx_get_device, cuCtxGetDevice, 2000, (Ordinal*))                                              \
  X(primary_ctx_get_state, cuDevicePrimaryCtxGetState, 7000, (Ordinal, unsigned*, int*))           \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000, (Context*, Ordinal))                       \
  X(stream_is_capturing, cuStreamIsCapturing, 10000, (Stream, int*))                               \
  X(stream_get_ctx, cuStreamGetCtx, 9020, (Stream, Context*))                                      \
  X(stream_query, cuStreamQuery, 2000, (Stream))                                                   \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (int*))

/// The driver's own entries, never those that stand in for them.
struct Driver {
  /// Of the library at `path`, which the program has loaded.
  explicit Driver(const std::string& path);

  bool complete = false;  ///< if not, some are null
#define PENSTOCK_RUN_MEMBER(member, name, version, parameters) Result(*member) parameters = nullptr;
  PENSTOCK_RUN_DRIVER(PENSTOCK_RUN_MEMBER)
#undef PENSTOCK_RUN_MEMBER
};

/// While one lives, calls of this thread end no capture of another thread.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { driver_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kRelaxedCapture;
};

}  // namespace penstock::run
