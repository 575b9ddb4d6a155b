#pragma once

#include "device/cuda/driver_types.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

/// The part of nvJPEG's binary interface that penstock uses. It is declared here so that building needs no
/// vendor header. The library is looked for when it is needed, and never comes with penstock.
namespace penstock::cuda::nvjpeg {

using Status = int;
inline constexpr Status kSuccess = 0;

struct HandleTag;
struct StateTag;
using Handle = HandleTag*;
using State = StateTag*;

using Backend = int;
inline constexpr Backend kGpuHybrid = 2;
inline constexpr Backend kHardware = 3;

using OutputFormat = int;
inline constexpr OutputFormat kInterleavedRgb = 5;

inline constexpr int kMajorVersion = 0;
inline constexpr int kMinorVersion = 1;

struct Image {
  unsigned char* channel[4];
  std::size_t pitch[4];
};

struct Allocator {
  int (*allocate)(void* context, void** data, std::size_t bytes, Stream stream);
  int (*free)(void* context, void* data, std::size_t bytes, Stream stream);
  void* context;
};

#define PENSTOCK_NVJPEG_ENTRIES(X)                                                            \
  X(get_property, nvjpegGetProperty, (int, int*))                                             \
  X(create, nvjpegCreateExV2, (Backend, Allocator*, Allocator*, unsigned, Handle*))           \
  X(destroy, nvjpegDestroy, (Handle))                                                         \
  X(state_create, nvjpegJpegStateCreate, (Handle, State*))                                    \
  X(state_destroy, nvjpegJpegStateDestroy, (State))                                           \
  X(batch_initialize, nvjpegDecodeBatchedInitialize, (Handle, State, int, int, OutputFormat)) \
  X(decode_batch, nvjpegDecodeBatched,                                                        \
    (Handle, State, const unsigned char* const*, const std::size_t*, Image*, Stream))

/// The functions of one library.
struct Library {
#define PENSTOCK_NVJPEG_MEMBER(member, symbol, parameters) Status(*member) parameters = nullptr;
  PENSTOCK_NVJPEG_ENTRIES(PENSTOCK_NVJPEG_MEMBER)
#undef PENSTOCK_NVJPEG_MEMBER

  std::string path;
  [[nodiscard]] std::string version() const;
};

/// Where a library may be: `first`, and then what the system's loader and the toolkit's folders have.
[[nodiscard]] std::vector<std::string> candidates(std::vector<std::string> first);

/// The library at `path`, which is never unloaded. Nullopt if it cannot be used:
/// `why` then says what is wrong.
[[nodiscard]] std::optional<Library> open(const std::string& path, std::string& why);

/// "NVJPEG_STATUS_BAD_JPEG".
[[nodiscard]] std::string status_name(Status status);

}  // namespace penstock::cuda::nvjpeg
