#include "data/file_reader.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/encoded_pictures.hpp>

#include <fmt/format.h>

#include <utility>

namespace penstock {

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

class PicturesInFiles final : public EncodedPictures {
 public:
  PicturesInFiles(Names paths, std::vector<PicturePlace> places, Names names)
      : paths_(std::move(paths)), places_(std::move(places)), names_(std::move(names)) {
    for (std::size_t i = 0; !places_.empty() && i < paths_.size(); ++i) {
      listed_.push_back(version_of(File(paths_[i])));
    }
  }

  std::uint64_t count() const noexcept override { return places_.empty() ? paths_.size() : places_.size(); }

  std::span<const std::byte> read(std::uint64_t picture, std::vector<std::byte>& scratch) const override {
    const auto i = static_cast<std::size_t>(picture);
    const auto number = places_.empty() ? i : static_cast<std::size_t>(places_[i].file);
    const File file(paths_[number]);
    if (!places_.empty() && version_of(file) != listed_[number]) {
      throw Error(
          fmt::format("{} was written after its pictures were listed. List them again.", file.name()));
    }
    const std::uint64_t bytes = places_.empty() ? file.size() : places_[i].bytes;
    if (bytes > kMostBytes) {
      throw Error(fmt::format("It has {}, and a picture has at most {}.", format_bytes(bytes),
                              format_bytes(kMostBytes)));
    }
    scratch.resize(static_cast<std::size_t>(bytes));
    read_exactly(file, places_.empty() ? 0 : places_[i].offset, scratch);
    return scratch;
  }

  std::string name(std::uint64_t picture) const override {
    return std::string((places_.empty() ? paths_ : names_)[static_cast<std::size_t>(picture)]);
  }

 private:
  using Version = std::pair<std::uint64_t, std::int64_t>;  // bytes, and when it was written

  static Version version_of(const File& file) { return {file.size(), file.written()}; }

  Names paths_;
  std::vector<PicturePlace> places_;  ///< none: each file is a picture
  Names names_;
  std::vector<Version> listed_;  ///< of the files that hold several
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

EncodedPicturesPtr pictures_in_files(Names paths, std::vector<PicturePlace> places, Names names) {
  return std::make_shared<PicturesInFiles>(std::move(paths), std::move(places), std::move(names));
}

EncodedPicturesPtr pictures_in_memory(std::vector<std::span<const std::byte>> pictures,
                                      std::shared_ptr<const void> keep_alive) {
  return std::make_shared<PicturesInMemory>(std::move(pictures), std::move(keep_alive));
}

}  // namespace penstock
