#include "data/kept_samples.hpp"
#include "decode/shared/picture_decoder.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/feed_statistics.hpp>
#include <penstock/core/file_error.hpp>
#include <penstock/data/pictures.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

namespace penstock {

namespace {

// What a larger file or picture took is not kept for the next one.
constexpr std::size_t kMostKeptBytes = std::size_t{16} << 20;
constexpr std::int64_t kMostKeptPixels = std::int64_t{1} << 25;

bool is_random(const PictureOperation& operation) noexcept {
  return !std::holds_alternative<ResizeShorterSide>(operation) &&
         !std::holds_alternative<Resize>(operation) && !std::holds_alternative<CenterCrop>(operation);
}

PictureStyle style_of(const PictureOptions& options) {
  return {.filter = options.bicubic ? ResizeFilter::bicubic : ResizeFilter::bilinear,
          .layout = options.channels_first ? PixelLayout::chw : PixelLayout::hwc};
}

Field field_of(std::string name, PictureSize size, bool channels_first) {
  const auto height = static_cast<std::size_t>(size.height);
  const auto width = static_cast<std::size_t>(size.width);
  return {.name = std::move(name),
          .dtype = DType::uint8,
          .shape = channels_first ? Shape{3, height, width} : Shape{height, width, 3}};
}

/// Operations that change the colors of a device's pixels would need kernels of their own.
bool changes_pixels(const PictureOperation& operation) noexcept {
  return std::holds_alternative<ColorJitter>(operation) ||
         std::holds_alternative<RandomGrayscale>(operation) ||
         std::holds_alternative<RandomErasing>(operation);
}

class PictureReader final : public FieldReader, private JpegSource {
 public:
  PictureReader(std::string name, EncodedPicturesPtr pictures, PictureOptions options)
      : pictures_(std::move(pictures)),
        options_(std::move(options)),
        varies_(std::ranges::any_of(options_.operations, is_random)),
        augmentation_(options_.operations),
        field_(field_of(std::move(name), augmentation_.size(), options_.channels_first)) {
    if (options_.decoder == PictureDecoderChoice::device && is_host_only()) refuse_host_only();
    if (options_.memory_bytes > 0) {
      cache_ = std::make_unique<KeptSamples<DecodedPicture>>(options_.memory_bytes, pictures_->count());
    }
  }

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return pictures_->count(); }
  bool varies_by_epoch() const noexcept override { return varies_; }
  bool is_decoded() const noexcept override { return true; }
  const JpegSource* jpegs() const noexcept override {
    return options_.decoder == PictureDecoderChoice::host || is_host_only() ? nullptr : this;
  }
  void add_failures(FeedStatistics& statistics) const override {
    if (options_.failures != nullptr) options_.failures->add_to(statistics);
  }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    gather_in_epoch(0, indices, destination, stores);
  }

  void gather_in_epoch(std::uint64_t epoch, std::span<const std::uint64_t> indices,
                       std::span<std::byte> destination, StoreKind /*stores*/) const override {
    std::unique_ptr<Desk> desk = take_desk();
    const std::size_t bytes = field_.sample_bytes();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      read_or_fail(*desk, epoch, indices[i], destination.subspan(i * bytes, bytes));
    }
    put_back(std::move(desk));
  }

 private:
  /// What one thread decodes with.
  struct Desk {
    explicit Desk(PictureStyle style) : decoder(style) {}
    PictureDecoder decoder;
    PictureDecoder whole{{.layout = PixelLayout::hwc}};  ///< for the cache
    std::vector<std::byte> file;
    std::vector<std::byte> pixels;  ///< of a whole picture
    bool is_large = false;          ///< it keeps memory that few pictures need
  };

  bool is_host_only() const noexcept {
    return options_.memory_bytes > 0 || std::ranges::any_of(options_.operations, changes_pixels);
  }
  [[noreturn]] void refuse_host_only() const {
    throw InvalidArgument(fmt::format(
        "A device decodes, crops, resizes and flips pictures. {} is the host's: leave it out, or have the "
        "host decode.",
        options_.memory_bytes > 0 ? "A cache of decoded pictures" : "Changing colors or erasing areas"));
  }

  PictureDecoderChoice choice() const noexcept override { return options_.decoder; }
  PictureSize size() const noexcept override { return augmentation_.size(); }
  bool channels_first() const noexcept override { return options_.channels_first; }
  bool bicubic() const noexcept override { return options_.bicubic; }
  const std::vector<std::string>& libraries() const noexcept override { return options_.device_libraries; }

  bool read(std::uint64_t epoch, std::uint64_t sample, JpegSample& jpeg) const override {
    std::unique_ptr<Desk> desk = take_desk();
    bool is_read = false;
    try {
      jpeg.file = pictures_->read(sample, jpeg.scratch);
      const std::optional<PictureSize> stored = desk->decoder.baseline_jpeg(jpeg.file);
      is_read = stored && jpeg.file.size() <= kMostKeptBytes &&
                std::int64_t{stored->width} * stored->height <= kMostKeptPixels;
      if (is_read) {
        jpeg.stored = *stored;
        jpeg.view = augmentation_.draw(options_.seed, epoch, sample, *stored);
      }
    } catch (const Error&) {
      is_read = false;
    }
    if (jpeg.scratch.size() > kMostKeptBytes) jpeg.scratch = {};
    put_back(std::move(desk));
    return is_read;
  }

  std::unique_ptr<Desk> take_desk() const {
    const std::lock_guard lock(mutex_);
    if (desks_.empty()) return std::make_unique<Desk>(style_of(options_));
    std::unique_ptr<Desk> desk = std::move(desks_.back());
    desks_.pop_back();
    return desk;
  }

  void put_back(std::unique_ptr<Desk> desk) const {
    if (desk->is_large) return;
    const std::lock_guard lock(mutex_);
    desks_.push_back(std::move(desk));
  }

  void read_or_fail(Desk& desk, std::uint64_t epoch, std::uint64_t sample, std::span<std::byte> to) const {
    const auto place = [&](const Error& error) {
      return fmt::format("Sample {} of field '{}', {}: {}", sample, field_.name, pictures_->name(sample),
                         error.what());
    };
    try {
      read(desk, epoch, sample, to);
    } catch (const Error& error) {
      if (options_.failures != nullptr) {
        std::ranges::fill(to, std::byte{0});
        options_.failures->add(sample, Error(place(error)).what());
      } else if (const auto* of_file = dynamic_cast<const FileError*>(&error)) {
        throw FileError(place(error), of_file->file(), of_file->code());
      } else {
        throw Error(place(error));
      }
    }
  }

  void read(Desk& desk, std::uint64_t epoch, std::uint64_t sample, std::span<std::byte> to) const {
    const auto view = [&](PictureSize stored) {
      return augmentation_.draw(options_.seed, epoch, sample, stored);
    };
    if (const DecodedPicture* kept = cache_ == nullptr ? nullptr : cache_->find(sample)) {
      return desk.decoder.render(kept->pixels, kept->size, view(kept->size), to);
    }
    const std::span<const std::byte> file = pictures_->read(sample, desk.file);
    desk.is_large = desk.is_large || file.size() > kMostKeptBytes;
    if (options_.decode && !can_decode(picture_format(file))) {
      const DecodedPicture picture = options_.decode(file);
      desk.decoder.render(picture.pixels, picture.size, view(picture.size), to);
      if (cache_ != nullptr) cache_->keep(sample, picture.pixels.size(), picture);
      return;
    }
    const PictureSize stored = desk.decoder.size(file);
    const std::int64_t pixels = std::int64_t{stored.width} * stored.height;
    desk.is_large = desk.is_large || pixels > kMostKeptPixels;
    if (cache_ == nullptr) return desk.decoder.decode(file, view(stored), to);
    // Also a picture that finds no room is decoded whole: its bytes must not depend on who came first.
    desk.pixels.resize(3 * static_cast<std::size_t>(pixels));
    desk.whole.decode(file, whole_picture(stored), desk.pixels);
    desk.decoder.render(desk.pixels, stored, view(stored), to);
    cache_->keep(sample, desk.pixels.size(), stored, desk.pixels);
  }

  const EncodedPicturesPtr pictures_;
  const PictureOptions options_;
  const bool varies_;
  const Augmentation augmentation_;
  const Field field_;
  std::unique_ptr<KeptSamples<DecodedPicture>> cache_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Desk>> desks_;  ///< that no thread uses
};

}  // namespace

void PictureFailures::add(std::uint64_t sample, std::string why) {
  const std::lock_guard lock(mutex_);
  const auto i = static_cast<std::size_t>(sample);
  if (failed_.size() <= i) failed_.resize(i + 1);
  failed_[i] = true;
  if (kept_.size() < kMostKept || kept_.contains(sample)) kept_[sample] = std::move(why);
}

std::map<std::uint64_t, std::string> PictureFailures::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

void PictureFailures::add_to(FeedStatistics& statistics) const {
  const std::lock_guard lock(mutex_);
  statistics.failed_samples += static_cast<std::uint64_t>(std::ranges::count(failed_, true));
  for (const auto& [sample, why] : kept_) {
    if (statistics.failures.size() == FeedStatistics::kMostFailures) return;
    statistics.failures.push_back(why);
  }
}

std::vector<std::string> decoded_suffixes() {
  using enum PictureFormat;
  std::vector<std::string> suffixes;
  for (const auto& [suffix, format] :
       {std::pair{".jpg", jpeg}, {".jpeg", jpeg}, {".png", png}, {".webp", webp}}) {
    if (can_decode(format)) suffixes.emplace_back(suffix);
  }
  return suffixes;
}

std::vector<PictureOperation> plain_operations(int size) {
  return {ResizeShorterSide{(size * 8 + 6) / 7}, CenterCrop{{size, size}}};
}

FieldReaderPtr read_pictures(std::string name, EncodedPicturesPtr pictures, PictureOptions options) {
  return std::make_shared<PictureReader>(std::move(name), std::move(pictures), std::move(options));
}

std::vector<FieldReaderPtr> read_labelled_pictures(LabelledPictures pictures, PictureOptions options) {
  std::vector<FieldReaderPtr> fields{
      read_pictures("image", std::move(pictures.pictures), std::move(options))};
  if (!pictures.labels.empty()) {
    fields.push_back(
        read_array(Field{.name = "label", .dtype = DType::int64, .shape = {}}, std::move(pictures.labels)));
  }
  return fields;
}

}  // namespace penstock
