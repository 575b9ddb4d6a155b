#include "data/npy_header.hpp"

#include "data/array_bytes.hpp"
#include "data/malformed.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace penstock {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaximumAxes = 64;

// Reads the few kinds of Python literals that NumPy writes.
class Literal {
 public:
  Literal(std::string_view text, std::uint64_t offset, const std::string& file)
      : text_(text), offset_(offset), file_(file) {}

  // The offset of the next character that is not a space.
  std::uint64_t offset() {
    skip_space();
    return offset_ + at_;
  }

  bool take(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted, std::string_view what) {
    if (!take(wanted)) fail(fmt::format("'{}' {}", wanted, what));
  }

  void expect_end() {
    skip_space();
    if (at_ != text_.size()) fail("only spaces after the dictionary");
  }

  std::string_view string(std::string_view what) {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail(what);
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail(fmt::format("{}, closed by a quote", what));
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return value;
  }

  bool boolean(std::string_view what) {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return word == "True";
      }
    }
    fail(what);
  }

  bool at_digit() {
    skip_space();
    return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9';
  }

  std::size_t number(std::string_view what) {
    if (!at_digit()) fail(what);
    const std::uint64_t begin = offset();
    std::size_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (__builtin_mul_overflow(value, std::size_t{10}, &value) ||
          __builtin_add_overflow(value, static_cast<std::size_t>(text_[at_] - '0'), &value)) {
        throw_malformed(file_, begin, what, "a number past 2^64");
      }
    }
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 marked its long integers
    return value;
  }

  [[noreturn]] void fail(std::string_view expected) {
    const std::uint64_t begin = offset();
    const std::string_view rest = text_.substr(at_, 24);
    if (rest.empty()) throw_malformed(file_, begin, expected, "the end of the header");
    throw_malformed(file_, begin, expected, fmt::format("\"{}\"", rest));
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }

  std::string_view text_;
  std::uint64_t offset_;
  const std::string& file_;
  std::size_t at_ = 0;
};

std::optional<DType> plain_dtype(std::string_view kind_and_size) {
  static constexpr std::pair<std::string_view, DType> kKnown[] = {
      {"b1", DType::boolean}, {"u1", DType::uint8},   {"i1", DType::int8},    {"u2", DType::uint16},
      {"i2", DType::int16},   {"u4", DType::uint32},  {"i4", DType::int32},   {"u8", DType::uint64},
      {"i8", DType::int64},   {"f2", DType::float16}, {"f4", DType::float32}, {"f8", DType::float64}};
  for (const auto& [text, dtype] : kKnown) {
    if (text == kind_and_size) return dtype;
  }
  return std::nullopt;
}

DType parse_descr(Literal& in, const std::string& file) {
  const std::string_view wanted = "a dtype such as '<f4' under 'descr'";
  const std::uint64_t offset = in.offset();
  if (in.take('[')) {
    throw_malformed(file, offset, wanted, "a structured dtype: save each of its fields as a file of its own");
  }
  const std::string_view descr = in.string(wanted);
  const char order = descr.empty() ? '\0' : descr.front();
  const bool known_order = order == '<' || order == '|' || order == '=' || order == '>';
  const std::optional<DType> dtype = known_order ? plain_dtype(descr.substr(1)) : std::nullopt;
  if (descr.find('O') != std::string_view::npos) {
    throw_malformed(file, offset, wanted,
                    fmt::format("'{}', an array of Python objects: save numbers", descr));
  }
  if (!dtype) {
    throw_malformed(file, offset, wanted, fmt::format("'{}', which penstock does not move", descr));
  }
  if (order == '>' && dtype_bytes(*dtype) > 1) {
    throw_malformed(
        file, offset, wanted,
        fmt::format("'{}', big-endian: convert it with array.astype('<{}')", descr, descr.substr(1)));
  }
  return *dtype;
}

Shape parse_shape(Literal& in, const std::string& file) {
  Shape shape;
  in.expect('(', "at the beginning of the shape");
  while (in.at_digit()) {
    const std::uint64_t offset = in.offset();
    shape.push_back(in.number("the extent of an axis"));
    if (shape.size() > kMaximumAxes) throw_malformed(file, offset, "at most 64 axes", "another one");
    if (!in.take(',')) break;
  }
  in.expect(')', "at the end of the shape, or the extent of an axis");
  return shape;
}

struct Dictionary {
  std::optional<DType> dtype;
  std::optional<bool> fortran;
  std::optional<Shape> shape;
  std::uint64_t shape_offset = 0;
};

Dictionary parse_dictionary(Literal& in, const std::string& file) {
  Dictionary found;
  in.expect('{', "at the beginning of a dictionary");
  while (!in.take('}')) {
    const std::uint64_t offset = in.offset();
    const std::string_view key = in.string("a key of the dictionary, or '}'");
    in.expect(':', "after a key");
    if (key == "descr" && !found.dtype) {
      found.dtype = parse_descr(in, file);
    } else if (key == "fortran_order" && !found.fortran) {
      const std::uint64_t value = in.offset();
      found.fortran = in.boolean("True or False under 'fortran_order'");
      if (*found.fortran) {
        throw_malformed(file, value, "C order, in which a sample's bytes lie together",
                        "Fortran order: save numpy.ascontiguousarray(array)");
      }
    } else if (key == "shape" && !found.shape) {
      found.shape_offset = in.offset();
      found.shape = parse_shape(in, file);
    } else {
      throw_malformed(file, offset, "the keys 'descr', 'fortran_order' and 'shape', each once",
                      "another key");
    }
    if (!in.take(',')) {
      in.expect('}', "or ',' after a value of the dictionary");
      break;
    }
  }
  if (!found.dtype || !found.fortran || !found.shape) {
    in.fail("the keys 'descr', 'fortran_order' and 'shape' before the end of the dictionary");
  }
  in.expect_end();
  return found;
}

void check_size(const NpyHeader& header, std::uint64_t shape_offset, std::uint64_t file_bytes,
                const std::string& file) {
  const std::uint64_t bytes = array_bytes(header.dtype, header.shape, shape_offset, file);
  const std::uint64_t present = file_bytes - header.data_offset;
  if (bytes != present) {
    throw_malformed(file, std::min(file_bytes, header.data_offset + bytes),
                    fmt::format("the end of the file after {} bytes of data ({} of {})", bytes,
                                format_shape(header.shape), dtype_name(header.dtype)),
                    fmt::format("{} bytes of data", present));
  }
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> head, std::uint64_t file_bytes,
                           const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.substr(0, kMagic.size()) != kMagic) {
    throw_malformed(file, 0, "the six bytes \"\\x93NUMPY\" of a .npy file", "other bytes");
  }
  if (head.size() < 8) throw_malformed(file, head.size(), "a format version", "the end of the file");
  const auto version = std::to_integer<unsigned>(head[6]);
  if (version < 1 || version > 3 || head[7] != std::byte{0}) {
    throw_malformed(file, 6, "format version 1.0, 2.0 or 3.0",
                    fmt::format("{}.{}", version, std::to_integer<unsigned>(head[7])));
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = 8 + length_bytes;
  if (head.size() < begin) throw_malformed(file, head.size(), "the header's length", "the end of the file");
  const std::uint64_t length = little_endian(head.subspan(8, length_bytes));
  if (length > head.size() - begin) {
    throw_malformed(file, 8, fmt::format("a header that ends within the first {} bytes", head.size()),
                    fmt::format("a header of {} bytes", length));
  }
  Literal in(text.substr(begin, static_cast<std::size_t>(length)), begin, file);
  Dictionary dictionary = parse_dictionary(in, file);
  NpyHeader header{*dictionary.dtype, std::move(*dictionary.shape), begin + length};
  check_size(header, dictionary.shape_offset, file_bytes, file);
  return header;
}

}  // namespace penstock
