#include "data/file_reader.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/encoded_pictures.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

namespace {

class PictureFiles final : public EncodedPictures {
 public:
  explicit PictureFiles(Names paths) : paths_(std::move(paths)) {}

  std::uint64_t count() const noexcept override { return paths_.size(); }

  std::span<const std::byte> read(std::uint64_t picture, std::vector<std::byte>& scratch) const override {
    const File file(name(picture));
    scratch.resize(static_cast<std::size_t>(file.size()));
    read_exactly(file, 0, scratch);
    return scratch;
  }

  std::string name(std::uint64_t picture) const override {
    return std::string(paths_[static_cast<std::size_t>(picture)]);
  }

 private:
  Names paths_;
};

class PictureParts final : public EncodedPictures {
 public:
  PictureParts(Names paths, std::vector<PicturePlace> places, Names names)
      : paths_(std::move(paths)), places_(std::move(places)), names_(std::move(names)) {}

  std::uint64_t count() const noexcept override { return places_.size(); }

  std::span<const std::byte> read(std::uint64_t picture, std::vector<std::byte>& scratch) const override {
    const PicturePlace& place = places_[static_cast<std::size_t>(picture)];
    const File file(paths_[static_cast<std::size_t>(place.file)]);
    scratch.resize(static_cast<std::size_t>(place.bytes));
    read_exactly(file, place.offset, scratch);
    return scratch;
  }

  std::string name(std::uint64_t picture) const override {
    return std::string(names_[static_cast<std::size_t>(picture)]);
  }

 private:
  Names paths_;
  std::vector<PicturePlace> places_;
  Names names_;
};

class PicturesInMemory final : public EncodedPictures {
 public:
  PicturesInMemory(std::vector<std::span<const std::byte>> pictures, std::shared_ptr<const void> keep_alive)
      : pictures_(std::move(pictures)), keep_alive_(std::move(keep_alive)) {}

  std::uint64_t count() const noexcept override { return pictures_.size(); }
  std::span<const std::byte> read(std::uint64_t picture, std::vector<std::byte>& /*scratch*/) const override {
    return pictures_[static_cast<std::size_t>(picture)];
  }
  std::string name(std::uint64_t picture) const override { return fmt::format("picture {}", picture); }

 private:
  std::vector<std::span<const std::byte>> pictures_;
  std::shared_ptr<const void> keep_alive_;
};

}  // namespace

void Names::add(std::string_view name) {
  text_ += name;
  ends_.push_back(text_.size());
}

std::string_view Names::operator[](std::size_t i) const noexcept {
  const std::uint64_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(text_).substr(static_cast<std::size_t>(begin),
                                        static_cast<std::size_t>(ends_[i] - begin));
}

EncodedPicturesPtr picture_files(Names paths) { return std::make_shared<PictureFiles>(std::move(paths)); }

EncodedPicturesPtr picture_parts(Names paths, std::vector<PicturePlace> places, Names names) {
  return std::make_shared<PictureParts>(std::move(paths), std::move(places), std::move(names));
}

EncodedPicturesPtr pictures_in_memory(std::vector<std::span<const std::byte>> pictures,
                                      std::shared_ptr<const void> keep_alive) {
  return std::make_shared<PicturesInMemory>(std::move(pictures), std::move(keep_alive));
}

}  // namespace penstock
