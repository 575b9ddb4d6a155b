#pragma once

#include <penstock/data/encoded_pictures.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/decode/augmentation.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// The pictures that could not be read. Thread-safe.
class PictureFailures {
 public:
  /// Of so many samples it keeps what was wrong. All are counted.
  static constexpr std::size_t kMostKept = 1000;

  void add(std::uint64_t sample, std::string why);
  /// Each kept sample once, with what was wrong with its file the last time.
  [[nodiscard]] std::map<std::uint64_t, std::string> kept() const;
  /// Adds each sample once.
  void add_to(FeedStatistics& statistics) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::string> kept_;
  std::vector<bool> failed_;  ///< by sample, up to the last one that failed
};

/// Red, green and blue of each pixel, row by row.
struct DecodedPicture {
  PictureSize size;
  std::vector<std::byte> pixels;
};

/// What decodes the pictures of a loader.
enum class PictureDecoderChoice : std::uint8_t {
  host,    ///< its threads
  device,  ///< nvJPEG, those JPEGs that it takes; the loader throws Unsupported if it is not there
  /// The faster of the two in a trial of the loader's. A loader of a part of an order tries nothing, so that
  /// all parts have the same: the device if it can.
  automatic,
};

/// An encoded sample, and what becomes of it.
struct JpegSample {
  std::vector<std::byte> scratch;
  std::span<const std::byte> file;  ///< in scratch, or memory of the source
  PictureSize stored;
  PictureView view;
};

/// JPEGs for a device to decode. Thread-safe.
class JpegSource {
 public:
  virtual ~JpegSource() = default;
  /// Not `host`.
  virtual PictureDecoderChoice choice() const noexcept = 0;
  /// How their views are rendered; all have one size.
  virtual PictureSize size() const noexcept = 0;
  virtual bool channels_first() const noexcept = 0;
  virtual bool bicubic() const noexcept = 0;
  /// Where the library of the device may be: see JpegDecoderOptions.
  virtual const std::vector<std::string>& libraries() const noexcept = 0;

  /// Reads a sample in `epoch`. False if FieldReader::gather_in_epoch is to decode it, or to say what is
  /// wrong with it: it is no baseline JPEG, is larger than memory is kept for, or cannot be read. What can be
  /// read alone decides, so that a sample is always decoded by the same. Blocks the host.
  virtual bool read(std::uint64_t epoch, std::uint64_t sample, JpegSample& jpeg) const = 0;
};

struct PictureOptions {
  std::vector<PictureOperation> operations;  ///< see Augmentation
  std::uint64_t seed = 0;                    ///< of the random operations
  bool channels_first = true;                ///< 3 x height x width; otherwise height x width x 3
  bool bicubic = false;                      ///< resizes so; otherwise bilinear
  /// Memory for decoded pictures, which later epochs crop and resize without decoding them again.
  std::size_t memory_bytes = 0;
  /// What decodes them: see JpegSource.
  PictureDecoderChoice decoder = PictureDecoderChoice::host;
  std::vector<std::string> device_libraries{};  ///< see JpegDecoderOptions::libraries
  /// Decodes files of the formats that this build does not. Several threads call it at once. Empty: such a
  /// file is an Error.
  std::function<DecodedPicture(std::span<const std::byte> file)> decode = nullptr;
  /// If given, a picture that cannot be read is black, and is listed there. Otherwise it is an Error.
  std::shared_ptr<PictureFailures> failures = nullptr;
};

/// Operations without random numbers: the shorter side is resized to 8/7 of `size`, and the center cut out.
[[nodiscard]] std::vector<PictureOperation> plain_operations(int size);

/// How names of pictures end that this build decodes, in lower case: ".jpg".
[[nodiscard]] std::vector<std::string> decoded_suffixes();

/// Decodes each picture when it is read, as a sample of uint8 red, green and blue. Its view follows from the
/// seed, the epoch and the sample. gather() blocks the host, and throws Error that names sample and file.
/// Throws InvalidArgument as Augmentation.
[[nodiscard]] FieldReaderPtr read_pictures(std::string name, EncodedPicturesPtr pictures,
                                           PictureOptions options);

/// Fields "image" and "label"; without labels, only the first.
[[nodiscard]] std::vector<FieldReaderPtr> read_labelled_pictures(LabelledPictures pictures,
                                                                 PictureOptions options);

}  // namespace penstock
