#include "data/file_reader.hpp"
#include "data/malformed.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/encoded_pictures.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock {

namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kMostNameBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostLabelBytes = 64;

/// A regular file in a tar file.
struct Member {
  std::string name;
  std::uint64_t offset = 0;  ///< of its bytes
  std::uint64_t bytes = 0;
};

std::string_view text_at(std::span<const std::byte> block, std::size_t offset, std::size_t most) {
  const char* const text = reinterpret_cast<const char*>(block.data()) + offset;
  return {text, ::strnlen(text, most)};
}

/// Reads the members of a tar file one after the other: of the formats ustar, GNU and pax. Source:
/// https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html, and GNU tar's manual.
class TarReader {
 public:
  explicit TarReader(const File& file) : file_(file) {}

  std::optional<Member> next() {
    std::optional<std::string> name;
    std::optional<std::uint64_t> bytes;
    while (at_ < file_.size()) {
      std::array<std::byte, kBlock> head{};
      read_exactly(file_, at_, head);
      if (std::ranges::all_of(head, [](std::byte b) { return b == std::byte{0}; })) break;
      check_sum(head);
      Member member{.name = name.value_or(name_of(head)), .offset = at_ + kBlock, .bytes = size_of(head)};
      const char type = static_cast<char>(head[156]);
      if (type != 'x' && type != 'g' && type != 'L' && bytes) member.bytes = *bytes;
      if (member.bytes > file_.size() - member.offset) {
        throw_malformed(file_.name(), at_, fmt::format("a member that ends before byte {}", file_.size()),
                        fmt::format("one of {} bytes", member.bytes));
      }
      at_ = member.offset + (member.bytes + kBlock - 1) / kBlock * kBlock;
      if (type == '0' || type == '\0') return member;
      if (type == 'L') name = read_text(member).c_str();  // which ends at its first zero
      if (type == 'x') read_records(read_text(member), name, bytes);
    }
    if (at_ > file_.size()) {
      throw_malformed(file_.name(), file_.size(), "the end of a member's last block", "the end of the file");
    }
    return std::nullopt;
  }

 private:
  /// That of a head counts its own field as blanks.
  void check_sum(std::span<const std::byte> head) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < head.size(); ++i) {
      sum += i >= 148 && i < 156 ? std::uint64_t{' '} : std::to_integer<std::uint64_t>(head[i]);
    }
    if (sum != number_at(head, 148, 8)) {
      throw_malformed(file_.name(), at_, "the head of a tar file's member", "a block whose sum is wrong");
    }
  }

  [[nodiscard]] static std::string name_of(std::span<const std::byte> head) {
    const bool has_prefix = text_at(head, 257, 6) == "ustar";
    const std::string_view prefix = has_prefix ? text_at(head, 345, 155) : std::string_view();
    return prefix.empty() ? std::string(text_at(head, 0, 100))
                          : fmt::format("{}/{}", prefix, text_at(head, 0, 100));
  }

  [[nodiscard]] std::uint64_t size_of(std::span<const std::byte> head) const {
    if ((head[124] & std::byte{0x80}) == std::byte{0}) return number_at(head, 124, 12);
    std::uint64_t bytes = 0;  // GNU's form: a number of 95 bits, of which 64 are enough
    for (std::size_t i = 128; i < 136; ++i) bytes = bytes << 8 | std::to_integer<std::uint64_t>(head[i]);
    return bytes;
  }

  [[nodiscard]] std::uint64_t number_at(std::span<const std::byte> head, std::size_t offset,
                                        std::size_t most) const {
    std::string_view text = text_at(head, offset, most);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 8);
    if (error != std::errc()) {
      throw_malformed(file_.name(), at_ + offset, "an octal number", fmt::format("'{}'", text));
    }
    return number;
  }

  [[nodiscard]] std::string read_text(const Member& member) const {
    if (member.bytes > kMostNameBytes) {
      throw_malformed(file_.name(), member.offset, "a member's name",
                      fmt::format("a text of {} bytes", member.bytes));
    }
    std::string text(static_cast<std::size_t>(member.bytes), '\0');
    read_exactly(file_, member.offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  /// Records of pax: "LENGTH KEY=VALUE\n", where the length counts all of it.
  void read_records(std::string_view records, std::optional<std::string>& name,
                    std::optional<std::uint64_t>& bytes) const {
    while (!records.empty()) {
      std::size_t length = 0;
      const auto [digits, error] = std::from_chars(records.data(), records.data() + records.size(), length);
      const auto used = static_cast<std::size_t>(digits - records.data());
      if (error != std::errc() || length > records.size() || length < used + 2) {
        throw_malformed(file_.name(), at_, "records of a pax head", "one of a wrong length");
      }
      const std::string_view record = records.substr(used + 1, length - used - 2);
      records.remove_prefix(length);
      if (record.starts_with("path=")) name = record.substr(5);
      std::uint64_t size = 0;
      if (!record.starts_with("size=")) continue;
      if (std::from_chars(record.data() + 5, record.data() + record.size(), size).ec == std::errc())
        bytes = size;
    }
  }

  const File& file_;
  std::uint64_t at_ = 0;
};

bool is_picture_suffix(std::string_view suffix) {
  constexpr std::array<std::string_view, 4> kSuffixes = {"jpg", "jpeg", "png", "webp"};
  return std::ranges::find(kSuffixes, suffix) != kSuffixes.end();
}

class PicturesInTars final : public EncodedPictures {
 public:
  void add(const File& file) { files_.push_back(file); }
  void add(const Member& picture) {
    names_.add(picture.name);
    places_.push_back({picture.offset, static_cast<std::uint32_t>(picture.bytes), files_.size() - 1});
  }

  std::uint64_t count() const noexcept override { return places_.size(); }

  std::span<const std::byte> read(std::uint64_t picture, std::vector<std::byte>& scratch) const override {
    const Place& place = places_[static_cast<std::size_t>(picture)];
    scratch.resize(place.bytes);
    read_exactly(files_[place.file], place.offset, scratch);
    return scratch;
  }

  std::string name(std::uint64_t picture) const override {
    const auto i = static_cast<std::size_t>(picture);
    return fmt::format("{} in {}", names_[i], files_[places_[i].file].name());
  }

 private:
  struct Place {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::size_t file = 0;
  };
  std::vector<File> files_;
  std::vector<Place> places_;
  Names names_;
};

/// Puts the members of samples together.
class TarIndex {
 public:
  void add(const File& file) {
    pictures_->add(file);
    TarReader reader(file);
    while (const std::optional<Member> member = reader.next()) add(file, *member);
    end_sample(file);
  }

  LabelledPictures take() {
    if (labels_.size() != 0 && labels_.size() != pictures_->count()) {
      throw Error(fmt::format(
          "{} of {} pictures in tar files have a label (a member 'cls'): give all of them one, or none.",
          labels_.size(), pictures_->count()));
    }
    return {.pictures = std::move(pictures_), .labels = std::move(labels_), .classes = {}};
  }

 private:
  void add(const File& file, const Member& member) {
    const std::size_t base = member.name.rfind('/') + 1;  // 0 if there is none
    const std::size_t dot = std::min(member.name.find('.', base), member.name.size());
    if (dot == base) return;  // a hidden file
    const std::string_view key = std::string_view(member.name).substr(0, dot);
    std::string suffix = member.name.substr(std::min(dot + 1, member.name.size()));
    std::ranges::transform(suffix, suffix.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (key != key_) {
      end_sample(file);
      key_ = key;
    }
    if (is_picture_suffix(suffix)) {
      if (picture_)
        throw Error(fmt::format("{}: sample {} has several pictures; a sample has one.", file.name(), key_));
      picture_ = member;
    } else if (suffix == "cls") {
      label_ = read_label(file, member);
    }
  }

  [[nodiscard]] static std::int64_t read_label(const File& file, const Member& member) {
    std::string text(static_cast<std::size_t>(std::min(member.bytes, kMostLabelBytes)), '\0');
    read_exactly(file, member.offset, std::as_writable_bytes(std::span(text)));
    std::int64_t label = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), label).ec != std::errc()) {
      throw_malformed(file.name(), member.offset, fmt::format("a whole number, the label {}", member.name),
                      fmt::format("'{}'", text));
    }
    return label;
  }

  void end_sample(const File& /*file*/) {
    if (picture_) {
      pictures_->add(*picture_);
      if (label_) labels_.push_back(*label_);
    }
    picture_.reset();
    label_.reset();
    key_.clear();
  }

  std::shared_ptr<PicturesInTars> pictures_ = std::make_shared<PicturesInTars>();
  std::vector<std::int64_t> labels_;
  std::string key_;
  std::optional<Member> picture_;
  std::optional<std::int64_t> label_;
};

}  // namespace

LabelledPictures pictures_in_tars(const std::vector<std::filesystem::path>& files) {
  TarIndex index;
  for (const std::filesystem::path& file : files) index.add(File(file));
  return index.take();
}

}  // namespace penstock
