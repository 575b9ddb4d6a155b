// nvJPEG over the fake driver, by libjpeg-turbo. It reads the files when the stream comes to the work, as the
// hardware engines do, so that memory which is reused too early gives other pixels. A state that is used
// while its work is under way ends the program.
#include "device/cuda/nvjpeg.hpp"

#include <jpeglib.h>

#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

using namespace penstock::cuda::nvjpeg;
using penstock::cuda::Stream;

constexpr Status kBadJpeg = 3;
constexpr Status kNotSupported = 4;
constexpr Status kAllocatorFailure = 5;
constexpr Status kArchMismatch = 7;

std::mutex mutex;
std::map<std::string, std::pair<long, Status>> failures;  // calls until then, and what it returns
std::atomic<bool> has_hardware{true};
std::atomic<int> refused_width{0};
std::atomic<bool> is_instant{false};
std::atomic<long> live{0};

Status enter(const char* function) {
  const std::lock_guard lock(mutex);
  auto& [left, status] = failures[function];
  return left > 0 && --left == 0 ? status : kSuccess;
}

struct OpenLibrary {
  Allocator device;
  bool hardware;
};

struct Decoder {
  OpenLibrary& library;
  int batch = 0;
  void* memory = nullptr;
  std::size_t bytes = 0;
  std::atomic<bool> is_busy{false};
};

struct Errors {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
};

/// Reads the header and, if `to` is given, the pixels.
Status read_jpeg(const unsigned char* file, std::size_t bytes, bool hardware, const Image* to) {
  jpeg_decompress_struct jpeg{};
  Errors errors{};
  jpeg.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = [](j_common_ptr failed) {
    std::longjmp(reinterpret_cast<Errors*>(failed->err)->jump, 1);
  };
  errors.manager.emit_message = [](j_common_ptr, int) {};
  if (setjmp(errors.jump) != 0) {
    jpeg_destroy_decompress(&jpeg);
    return kBadJpeg;
  }
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, file, bytes);
  jpeg_read_header(&jpeg, TRUE);
  const bool supported = jpeg.num_components != 4 && !(hardware && jpeg.progressive_mode) &&
                         static_cast<int>(jpeg.image_width) != refused_width;
  if (to != nullptr) {
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    while (jpeg.output_scanline < jpeg.output_height) {
      JSAMPROW row = to->channel[0] + jpeg.output_scanline * to->pitch[0];
      jpeg_read_scanlines(&jpeg, &row, 1);
    }
  }
  jpeg_destroy_decompress(&jpeg);
  return supported ? kSuccess : kNotSupported;
}

struct Work {
  Decoder& decoder;
  std::vector<const unsigned char*> files;
  std::vector<std::size_t> sizes;
  std::vector<Image> images;
};

void run(void* argument) {
  const std::unique_ptr<Work> work(static_cast<Work*>(argument));
  for (std::size_t i = 0; i < work->files.size() && !is_instant; ++i) {
    read_jpeg(work->files[i], work->sizes[i], false, &work->images[i]);
  }
  work->decoder.is_busy = false;
}

}  // namespace

extern "C" int cuGetProcAddress_v2(const char*, void**, int, unsigned long long, int*);

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ENTER(function) \
  if (const Status early = enter(#function)) return early

EXPORT void fake_nvjpeg_reset() {
  const std::lock_guard lock(mutex);
  failures.clear();
  has_hardware = true;
  refused_width = 0;
  is_instant = false;
}
/// The `nth` call from now returns `status` and does nothing.
EXPORT void fake_nvjpeg_fail(const char* function, long nth, int status) {
  const std::lock_guard lock(mutex);
  failures[function] = {nth, status};
}
/// Pictures of this width are not supported.
EXPORT void fake_nvjpeg_refuse(int width) { refused_width = width; }
/// Nothing is decoded: the faster decoder.
EXPORT void fake_nvjpeg_set_instant(int instant) { is_instant = instant != 0; }
EXPORT void fake_nvjpeg_set_hardware(int there) { has_hardware = there != 0; }
EXPORT long fake_nvjpeg_live() { return live; }

EXPORT Status nvjpegGetProperty(int property, int* value) {
  *value = property == kMajorVersion ? 13 : 0;
  return kSuccess;
}

EXPORT Status nvjpegCreateExV2(int backend, Allocator* device, Allocator* /*pinned*/, unsigned flags,
                               Handle* handle) {
  ENTER(nvjpegCreateExV2);
  if (flags != 0) return kNotSupported;
  if (backend == kHardware && !has_hardware) return kArchMismatch;
  *handle = reinterpret_cast<Handle>(new OpenLibrary{*device, backend == kHardware});
  ++live;
  return kSuccess;
}

EXPORT Status nvjpegDestroy(Handle handle) {
  delete reinterpret_cast<OpenLibrary*>(handle);
  --live;
  return kSuccess;
}

EXPORT Status nvjpegJpegStateCreate(Handle handle, State* state) {
  ENTER(nvjpegJpegStateCreate);
  *state = reinterpret_cast<State>(new Decoder{*reinterpret_cast<OpenLibrary*>(handle)});
  ++live;
  return kSuccess;
}

EXPORT Status nvjpegJpegStateDestroy(State state) {
  const std::unique_ptr<Decoder> decoder(reinterpret_cast<Decoder*>(state));
  const Allocator& device = decoder->library.device;
  if (decoder->memory != nullptr) device.free(device.context, decoder->memory, decoder->bytes, nullptr);
  --live;
  return kSuccess;
}

EXPORT Status nvjpegDecodeBatchedInitialize(Handle, State state, int batch, int threads,
                                            OutputFormat format) {
  ENTER(nvjpegDecodeBatchedInitialize);
  if (batch < 1 || threads < 1 || format != kInterleavedRgb) return kNotSupported;
  reinterpret_cast<Decoder*>(state)->batch = batch;
  return kSuccess;
}

EXPORT Status nvjpegDecodeBatched(Handle, State state, const unsigned char* const* files,
                                  const std::size_t* sizes, Image* images, Stream stream) {
  ENTER(nvjpegDecodeBatched);
  Decoder& decoder = *reinterpret_cast<Decoder*>(state);
  if (decoder.is_busy) {
    std::fputs("a state of nvJPEG was used while its work was under way\n", stderr);
    std::abort();
  }
  const auto count = static_cast<std::size_t>(decoder.batch);
  for (std::size_t i = 0; i < count; ++i) {
    if (const Status status = read_jpeg(files[i], sizes[i], decoder.library.hardware, nullptr)) return status;
  }
  const Allocator& device = decoder.library.device;
  if (const std::size_t bytes = count << 12; bytes > decoder.bytes) {
    if (decoder.memory != nullptr) device.free(device.context, decoder.memory, decoder.bytes, stream);
    decoder.memory = nullptr;
    decoder.bytes = 0;
    if (device.allocate(device.context, &decoder.memory, bytes, stream) != 0) return kAllocatorFailure;
    decoder.bytes = bytes;
  }
  void* launch = nullptr;
  cuGetProcAddress_v2("cuLaunchHostFunc", &launch, 13000, 0, nullptr);
  auto work = std::make_unique<Work>(decoder, std::vector(files, files + count),
                                     std::vector(sizes, sizes + count), std::vector(images, images + count));
  decoder.is_busy = true;
  const int result =
      reinterpret_cast<int (*)(Stream, void (*)(void*), void*)>(launch)(stream, run, work.get());
  if (result != 0) {
    decoder.is_busy = false;
    return 6;
  }
  static_cast<void>(work.release());
  return kSuccess;
}
