#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// Names side by side in one string, since there may be millions.
class Names {
 public:
  void add(std::string_view name);
  [[nodiscard]] std::size_t size() const noexcept { return ends_.size(); }
  [[nodiscard]] std::string_view operator[](std::size_t i) const noexcept;

 private:
  std::string text_;
  std::vector<std::uint64_t> ends_;
};

/// Encoded pictures: the bytes of JPEG, PNG or WebP files, wherever they lie. Thread-safe.
class EncodedPictures {
 public:
  virtual ~EncodedPictures() = default;

  [[nodiscard]] virtual std::uint64_t count() const noexcept = 0;
  /// The bytes of `picture`, in memory of this object or in `scratch`. Blocks the host. Throws Error.
  [[nodiscard]] virtual std::span<const std::byte> read(std::uint64_t picture,
                                                        std::vector<std::byte>& scratch) const = 0;
  /// What an error calls `picture`: "cats/1.jpg".
  [[nodiscard]] virtual std::string name(std::uint64_t picture) const = 0;
};

using EncodedPicturesPtr = std::shared_ptr<const EncodedPictures>;

/// Pictures with a number for each, such as its class.
struct LabelledPictures {
  EncodedPicturesPtr pictures;
  std::vector<std::int64_t> labels;  ///< empty: there are none
  std::vector<std::string> classes;  ///< by label, of a folder
};

/// Where an encoded picture lies in one of several files.
struct PicturePlace {
  std::uint64_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The files at `paths`, which are opened when they are read. With `places`, pictures are parts of them, such
/// as members of tar files, and `names` has the names of these. Reading then throws Error if the file was
/// written since this call.
[[nodiscard]] EncodedPicturesPtr pictures_in_files(Names paths, std::vector<PicturePlace> places = {},
                                                   Names names = {});

/// Pictures in memory that `keep_alive` keeps alive and unchanged.
[[nodiscard]] EncodedPicturesPtr pictures_in_memory(std::vector<std::span<const std::byte>> pictures,
                                                    std::shared_ptr<const void> keep_alive);

/// The files below a folder that has a folder for each class, in the order of torchvision's ImageFolder and
/// with its labels. Throws Error if a folder cannot be read, or a class has no pictures.
[[nodiscard]] LabelledPictures pictures_in_folder(const std::filesystem::path& folder);

/// True if the first of the folders in `folder` has a picture. Throws Error if they cannot be read.
[[nodiscard]] bool is_picture_folder(const std::filesystem::path& folder);

}  // namespace penstock
