#include "doctor/read/json_reader.hpp"

#include "core/shared/parse_number.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kWindow = 256 * kKiB;
constexpr std::size_t kLongestToken = 16 * kMiB;
constexpr std::size_t kDeepest = 256;

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool is_scalar(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' ||
         c == '.';
}

void append_utf8(std::string& text, unsigned code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    text += static_cast<char>(0xE0 | code >> 12);
    text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
}

/// What an escaped character stands for; 0 if it is none.
char escaped(char c) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
  const std::size_t at = kLetters.find(c);
  return at == std::string_view::npos ? '\0' : kMeant[at];
}

}  // namespace

JsonReader::JsonReader(TextSource source, std::string file)
    : source_(source), file_(std::move(file)), window_(kWindow) {}

void JsonReader::fail(std::string_view expected, std::string_view found) const {
  std::string what(found);
  if (what.empty() && value_ >= end_) {
    if (before_ + value_ == 0) throw Error(fmt::format("{} is empty: its export did not finish.", file_));
    throw Error(fmt::format(
        "{}, byte {} of the text: expected {}, but the file ends there: its export did not finish.", file_,
        before_ + value_, expected));
  }
  if (what.empty())
    what = fmt::format("'{}'",
                       std::string_view(window_.data() + value_, std::min<std::size_t>(end_ - value_, 20)));
  throw Error(fmt::format("{}, byte {} of the text: expected {}, found {}.", file_, before_ + value_,
                          expected, what));
}

/// Reads more text behind that from `keep_from` on, which moves to the window's beginning. False at the end.
bool JsonReader::refill(std::size_t keep_from) {
  const std::size_t kept = end_ - keep_from;
  if (kept == window_.size()) {
    if (kept >= kLongestToken) fail("a text of at most 16 MiB", "a longer one");
    window_.resize(2 * kept);
  }
  std::memmove(window_.data(), window_.data() + keep_from, kept);
  before_ += keep_from;
  at_ -= keep_from;
  value_ -= std::min(value_, keep_from);
  const std::size_t got = source_(std::span(window_).subspan(kept));
  end_ = kept + got;
  return got > 0;
}

void JsonReader::skip_mark() {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  while (end_ < kMark.size() && refill(0)) {
  }
  if (std::string_view(window_.data(), end_).starts_with(kMark)) at_ = kMark.size();
}

/// The next character that is not white space, which is not taken; '\0' at the end.
char JsonReader::next_visible() {
  for (;;) {
    while (at_ < end_ && is_blank(window_[at_])) ++at_;
    value_ = at_;
    if (at_ < end_) return window_[at_];
    if (!refill(at_)) return '\0';
  }
}

char JsonReader::peek() {
  const char c = next_visible();
  if (at_ == end_) fail("a value");
  return c;
}

bool JsonReader::is_array() { return next_visible() == '[' && at_ < end_; }

void JsonReader::take(char expected, std::string_view name) {
  if (next_visible() != expected || at_ == end_) fail(name);
  ++at_;
}

void JsonReader::begin(char bracket, std::string_view name) {
  take(bracket, name);
  if (started_.size() == kDeepest) fail("at most 256 levels", "more");
  started_.push_back(false);
}

bool JsonReader::next_item(char end, std::string_view what) {
  const char c = next_visible();
  if (at_ == end_) fail(what);
  if (c == end) {
    ++at_;
    started_.pop_back();
    return false;
  }
  if (!started_.back()) {
    started_.back() = true;
    return true;
  }
  if (c != ',') fail(what);
  ++at_;
  return true;
}

bool JsonReader::next_key(std::string_view& key) {
  if (!next_item('}', "a comma or the object's end")) return false;
  if (next_visible() != '"') fail("a key");
  key = read_string();
  // The key stays where it is, unless the window moves.
  if (at_ < end_ && window_[at_] == ':') {
    ++at_;
    return true;
  }
  unescaped_.assign(key);
  key = unescaped_;
  take(':', "a colon");
  return true;
}

bool JsonReader::next_element() { return next_item(']', "a comma or the array's end"); }

std::string_view JsonReader::read_string() {
  take('"', "a string");
  std::size_t begin = at_;
  for (std::size_t from = begin;;) {
    const void* found = std::memchr(window_.data() + from, '"', end_ - from);
    const std::size_t stop =
        found != nullptr ? static_cast<std::size_t>(static_cast<const char*>(found) - window_.data()) : end_;
    if (std::memchr(window_.data() + from, '\\', stop - from) != nullptr) return unescape(begin);
    if (found != nullptr) {
      at_ = stop + 1;
      return {window_.data() + begin, stop - begin};
    }
    const std::size_t length = end_ - begin;
    at_ = end_;
    if (!refill(begin)) {
      value_ = end_;
      fail("the string's end");
    }
    begin = 0;
    from = length;
  }
}

/// Reads the rest of a string that begins at `begin`, character by character.
std::string_view JsonReader::unescape(std::size_t begin) {
  unescaped_.clear();
  at_ = begin;
  const auto take_one = [this] {
    value_ = at_;
    if (at_ == end_ && !refill(at_)) fail("the string's end");
    return window_[at_++];
  };
  for (;;) {
    char c = take_one();
    if (c == '"') return unescaped_;
    if (unescaped_.size() >= kLongestToken) fail("a text of at most 16 MiB", "a longer one");
    if (c != '\\') {
      unescaped_ += c;
      continue;
    }
    c = take_one();
    if (c != 'u') {
      if (escaped(c) == '\0') fail("an escaped character");
      unescaped_ += escaped(c);
      continue;
    }
    unsigned code = 0;
    for (int digit = 0; digit < 4; ++digit) {
      const char hex = take_one();
      const unsigned number = hex >= '0' && hex <= '9'   ? static_cast<unsigned>(hex - '0')
                              : hex >= 'a' && hex <= 'f' ? static_cast<unsigned>(hex - 'a' + 10)
                              : hex >= 'A' && hex <= 'F' ? static_cast<unsigned>(hex - 'A' + 10)
                                                         : 16;
      if (number == 16) fail("a hexadecimal digit");
      code = code * 16 + number;
    }
    append_utf8(unescaped_, code);
  }
}

std::string_view JsonReader::read_number() {
  const char c = next_visible();
  if (at_ == end_ || !is_scalar(c)) fail("a number");
  std::size_t begin = at_;
  for (;;) {
    while (at_ < end_ && is_scalar(window_[at_])) ++at_;
    if (at_ < end_) break;
    const std::size_t length = at_ - begin;
    const bool more = refill(begin);
    begin = 0;
    at_ = length;
    if (!more) break;
  }
  value_ = begin;
  return {window_.data() + begin, at_ - begin};
}

std::int64_t JsonReader::read_time() {
  constexpr double kMost = 9.2e15;  // microseconds, so that the sum of two still fits
  const std::string_view text = read_number();
  const char* const stop = text.data() + text.size();
  std::int64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  // Whole microseconds and digits, as they usually are, exactly: a double has too few digits.
  if (error == std::errc() && (end == stop || *end == '.') &&
      std::abs(static_cast<double>(whole)) < kMost / 2) {
    std::int64_t nanoseconds = 0;
    std::int64_t unit = 100;
    bool digits = true;
    for (const char* p = end == stop ? stop : end + 1; p != stop; ++p, unit /= 10) {
      digits = digits && *p >= '0' && *p <= '9';
      nanoseconds += unit * (*p - '0');
    }
    if (digits) return whole * 1000 + (text.front() == '-' ? -nanoseconds : nanoseconds);
  }
  const auto number = parse_number<double>(text);
  if (!number || !(std::abs(*number) < kMost / 2)) fail("a time in microseconds");
  return static_cast<std::int64_t>(*number * 1000);
}

std::uint64_t JsonReader::read_count(std::uint64_t most, std::string_view what) {
  const auto number = parse_number<std::uint64_t>(read_number());
  if (!number || *number > most) fail(what);
  return *number;
}

void JsonReader::skip_string() {
  take('"', "a string");
  bool escape = false;
  for (;;) {
    while (at_ < end_) {
      const char c = window_[at_++];
      if (escape) {
        escape = false;
      } else if (c == '\\') {
        escape = true;
      } else if (c == '"') {
        return;
      }
    }
    value_ = at_;
    if (!refill(at_)) fail("the string's end");
  }
}

void JsonReader::skip_scalar() {
  if (!is_scalar(window_[at_])) fail("a value");
  static_cast<void>(read_number());
}

void JsonReader::skip() {
  std::string open;
  do {
    const char c = peek();
    if (c == '"') {
      skip_string();
    } else if (c == '{' || c == '[') {
      if (open.size() + started_.size() == kDeepest) fail("at most 256 levels", "more");
      open += c == '{' ? '}' : ']';
      ++at_;
    } else if (c == '}' || c == ']') {
      if (open.empty() || open.back() != c) fail("a value");
      open.pop_back();
      ++at_;
    } else if ((c == ',' || c == ':') && !open.empty()) {
      ++at_;
    } else {
      skip_scalar();
    }
  } while (!open.empty());
}

void JsonReader::finish() {
  next_visible();
  if (at_ < end_) fail("the end of the text");
}

}  // namespace penstock
