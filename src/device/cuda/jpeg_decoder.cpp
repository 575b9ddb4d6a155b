#include "device/cuda/jpeg_decoder.hpp"

#include "device/cuda/nvjpeg.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace penstock::cuda {

namespace {

constexpr std::size_t kAlignment = 256;
// nvJPEG's own threads, with which it reads small batches if the GPU has no engines.
constexpr int kThreads = 4;

/// Memory of a backend, on the device or locked on the host.
class Memory {
 public:
  Memory(Backend& backend, bool on_device, std::size_t bytes) : backend_(backend), on_device_(on_device) {
    grow(bytes);
  }
  ~Memory() { free(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Has room for `bytes`. What it held is gone.
  void grow(std::size_t bytes) {
    if (bytes <= bytes_) return;
    free();
    data_ = on_device_ ? backend_.device_allocate(bytes) : backend_.host_allocate(bytes);
    bytes_ = bytes;
  }

 private:
  void free() noexcept {
    bytes_ = 0;
    void* const data = std::exchange(data_, nullptr);
    on_device_ ? backend_.device_free(data) : backend_.host_free(data);
  }

  Backend& backend_;
  const bool on_device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

std::size_t decoded_bytes(const JpegToRender& picture) {
  return align_up(3 * static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.height),
                  kAlignment);
}

/// What the kernel is told of a picture, whose decoded pixels lie at `pixels`.
RenderedPicture rendered(const JpegToRender& picture, const nvjpeg::Image& image) {
  return {.pixels = image.channel[0],
          .destination = picture.destination,
          .pitch = image.pitch[0],
          .crop_left = picture.crop_left,
          .crop_top = picture.crop_top,
          .crop_width = picture.crop_width,
          .crop_height = picture.crop_height,
          .resized_width = picture.resized_width,
          .resized_height = picture.resized_height,
          .window_left = picture.window_left,
          .window_top = picture.window_top,
          .flips = (picture.flip_horizontally ? kFlipHorizontally : 0) |
                   (picture.flip_vertically ? kFlipVertically : 0),
          .unused = 0};
}

class NvjpegDecoder final : public JpegDecoder {
 public:
  NvjpegDecoder(Backend& backend, const PrimaryContext& context, const Kernels& kernels,
                const JpegDecoderOptions& options)
      : backend_(backend), context_(context), kernels_(kernels), options_(options) {
    open();
    try {
      for (std::size_t i = 0; i < options_.lanes; ++i) lanes_.push_back(make_lane());
    } catch (...) {
      close();
      throw;
    }
  }
  ~NvjpegDecoder() override { close(); }

  [[nodiscard]] const std::string& name() const noexcept override { return name_; }

  [[nodiscard]] std::vector<std::size_t> render(std::size_t lane_number,
                                                std::span<const JpegToRender> pictures,
                                                const penstock::Stream& to) override {
    std::vector<std::size_t> refused;
    if (pictures.empty()) return refused;
    Lane& lane = *lanes_.at(lane_number);
    auto* const stream = static_cast<Stream>(to.native());
    place(lane, pictures);
    const std::size_t count = pictures.size();
    if (!decode(lane, 0, count, stream)) {
      // One of them, and which one is not known. A state serves one call after the other.
      for (std::size_t i = 0; i < count; ++i) {
        to.synchronize();
        if (!decode(lane, i, 1, stream)) refused.push_back(i);
      }
      note(refused.size(), count);
    }
    auto* const rows = reinterpret_cast<RenderedPicture*>(lane.rows.data());
    std::size_t rendered_count = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (std::ranges::binary_search(refused, i)) continue;
      rows[rendered_count++] = rendered(pictures[i], lane.images[i]);
    }
    if (rendered_count == 0) return refused;
    backend_.copy(lane.table.data(), rows, rendered_count * sizeof *rows, CopyDirection::h2d, to.native());
    kernels_.render({.pictures = reinterpret_cast<const RenderedPicture*>(lane.table.data()),
                     .count = static_cast<std::uint32_t>(rendered_count),
                     .width = options_.width,
                     .height = options_.height,
                     .channels_first = options_.channels_first,
                     .bicubic = options_.bicubic},
                    stream);
    return refused;
  }

 private:
  struct Lane {
    Lane(Backend& backend, std::size_t table_bytes)
        : rows(backend, false, table_bytes), table(backend, true, table_bytes), pixels(backend, true, 0) {}
    nvjpeg::State state = nullptr;
    std::size_t batch = 0;  ///< that the state is ready for
    Memory rows;            ///< of the table, on the host
    Memory table;
    Memory pixels;
    std::vector<nvjpeg::Image> images;
    std::vector<const unsigned char*> files;
    std::vector<std::size_t> sizes;
  };

  // nvJPEG's memory. Its functions may not throw: what they throw is kept for their caller.
  template <void* (Backend::*Allocate)(std::size_t)>
  static int allocate(void* self, void** data, std::size_t bytes, Stream /*stream*/) {
    auto& decoder = *static_cast<NvjpegDecoder*>(self);
    try {
      *data = (decoder.backend_.*Allocate)(bytes);
      return 0;
    } catch (...) {
      decoder.failure_ = std::current_exception();
      return 1;
    }
  }
  template <void (Backend::*Free)(void*) noexcept>
  static int free(void* self, void* data, std::size_t /*bytes*/, Stream /*stream*/) {
    (static_cast<NvjpegDecoder*>(self)->backend_.*Free)(data);
    return 0;
  }

  /// Calls a function of nvJPEG. Throws what its allocators have thrown.
  template <typename Function, typename... Arguments>
  [[nodiscard]] nvjpeg::Status try_nvjpeg(Function function, Arguments... arguments) {
    if (context_.forked()) throw_forked("nvjpeg");
    const CurrentContext current(context_);
    context_.driver().check(current.result(), "cuCtxPushCurrent");
    failure_ = nullptr;
    const nvjpeg::Status status = function(arguments...);
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
    return status;
  }

  void check(nvjpeg::Status status, const char* call) const {
    if (status == nvjpeg::kSuccess) return;
    throw DeviceError(nvjpeg::status_name(status), call, status,
                      fmt::format("{} at {} does not work on this GPU. Update the driver, install the nvJPEG "
                                  "of the driver's CUDA, or have the host decode.",
                                  name_, library_.path));
  }

  /// Finds a library that works, and makes its handle.
  void open() {
    std::string reasons;
    for (const std::string& path : nvjpeg::candidates(options_.libraries)) {
      std::string why;
      const std::optional<nvjpeg::Library> library = nvjpeg::open(path, why);
      if (library && create(*library, why)) return;
      if (library || path.find('/') != path.npos) reasons += fmt::format(" {}.", why);
    }
    throw Unsupported(
        fmt::format("{} decodes no pictures, for want of nvJPEG. `pip install nvidia-nvjpeg` brings it for "
                    "CUDA 13, `pip install nvidia-nvjpeg-cu12` for CUDA 12; CUDA toolkits have it, too. Or "
                    "have the host decode.{}",
                    backend_.info().spec, reasons));
  }

  bool create(const nvjpeg::Library& library, std::string& why) {
    for (const nvjpeg::Backend kind : {nvjpeg::kHardware, nvjpeg::kGpuHybrid}) {
      const nvjpeg::Status status =
          try_nvjpeg(library.create, kind, &device_memory_, &pinned_memory_, 0u, &handle_);
      why = fmt::format("{}: nvjpegCreateExV2 fails with {}", library.path, nvjpeg::status_name(status));
      if (status != nvjpeg::kSuccess) continue;
      library_ = library;
      name_ = fmt::format("nvJPEG {}, {}", library.version(),
                          kind == nvjpeg::kHardware ? "by its hardware engines" : "by its kernels");
      return true;
    }
    return false;
  }

  [[nodiscard]] std::unique_ptr<Lane> make_lane() {
    auto lane = std::make_unique<Lane>(backend_, options_.pictures * sizeof(RenderedPicture));
    check(try_nvjpeg(library_.state_create, handle_, &lane->state), "nvjpegJpegStateCreate");
    return lane;
  }

  void close() noexcept {
    if (context_.forked()) return;
    const CurrentContext current(context_);
    if (current.result() != kSuccess) return;
    for (const auto& lane : lanes_) library_.state_destroy(lane->state);
    if (handle_ != nullptr) library_.destroy(handle_);
  }

  /// Gives each picture its place in the lane's memory. That grows by more than is needed, so that it soon is
  /// enough for all batches.
  static void place(Lane& lane, std::span<const JpegToRender> pictures) {
    std::size_t bytes = 0;
    for (const JpegToRender& picture : pictures) bytes += decoded_bytes(picture);
    if (bytes > lane.pixels.bytes()) lane.pixels.grow(bytes + bytes / 4);
    lane.images.clear();
    lane.files.clear();
    lane.sizes.clear();
    auto* at = reinterpret_cast<unsigned char*>(lane.pixels.data());
    for (const JpegToRender& picture : pictures) {
      lane.images.push_back({{at}, {3 * static_cast<std::size_t>(picture.width)}});
      lane.files.push_back(reinterpret_cast<const unsigned char*>(picture.file.data()));
      lane.sizes.push_back(picture.file.size());
      at += decoded_bytes(picture);
    }
  }

  /// False if the library refuses one of the pictures.
  bool decode(Lane& lane, std::size_t first, std::size_t count, Stream stream) {
    if (lane.batch != count) {
      lane.batch = 0;
      check(try_nvjpeg(library_.batch_initialize, handle_, lane.state, static_cast<int>(count), kThreads,
                       nvjpeg::kInterleavedRgb),
            "nvjpegDecodeBatchedInitialize");
      lane.batch = count;
    }
    status_ = try_nvjpeg(library_.decode_batch, handle_, lane.state, lane.files.data() + first,
                         lane.sizes.data() + first, lane.images.data() + first, stream);
    if (status_ != nvjpeg::kSuccess) lane.batch = 0;
    return status_ == nvjpeg::kSuccess;
  }

  /// Pictures are refused one by one. If it refuses all, something else is wrong, and everything slow.
  void note(std::size_t refused, std::size_t count) {
    if (refused < count || count == 1 || std::exchange(noted_, true)) return;
    log_warning(
        fmt::format("{} refuses all {} JPEGs of a batch, the last one with {}: the host decodes them.", name_,
                    count, nvjpeg::status_name(status_)));
  }

  Backend& backend_;
  const PrimaryContext& context_;
  const Kernels& kernels_;
  const JpegDecoderOptions options_;
  // The library may keep their addresses.
  nvjpeg::Allocator device_memory_{&allocate<&Backend::device_allocate>, &free<&Backend::device_free>, this};
  nvjpeg::Allocator pinned_memory_{&allocate<&Backend::host_allocate>, &free<&Backend::host_free>, this};
  nvjpeg::Library library_;
  nvjpeg::Handle handle_ = nullptr;
  std::string name_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::exception_ptr failure_;
  nvjpeg::Status status_ = nvjpeg::kSuccess;
  bool noted_ = false;
};

}  // namespace

std::unique_ptr<JpegDecoder> make_nvjpeg_decoder(Backend& backend, const PrimaryContext& context,
                                                 const Kernels& kernels, const JpegDecoderOptions& options) {
  return std::make_unique<NvjpegDecoder>(backend, context, kernels, options);
}

}  // namespace penstock::cuda
