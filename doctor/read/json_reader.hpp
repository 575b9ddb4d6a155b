#pragma once

#include <penstock/core/function_ref.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// Fills a span with the next text. Returns the bytes read: 0 only at the end.
using TextSource = FunctionRef<std::size_t(std::span<char>)>;

/// Walks through JSON text of any length, keeping only a window of it in memory. The caller asks for what it
/// expects, and skips the rest. Skipped values are checked for brackets and strings that end, and no more.
///
/// A parser of our own, since PyTorch's profiler writes numbers that are not finite as inf and nan, which
/// nlohmann-json refuses. That would also take more than twice as long.
class JsonReader {
 public:
  /// `source` outlives the reader; `file` names it in errors.
  JsonReader(TextSource source, std::string file);

  /// Skips a byte order mark of UTF-8 at the beginning of the text, if there is one.
  void skip_mark();

  /// The character that the next value begins with. Throws Error at the end of the text.
  [[nodiscard]] char peek();
  /// True if the next value is an array.
  [[nodiscard]] bool is_array();

  void begin_object() { begin('{', "an object"); }
  /// Reads the next key, or the object's end: then false. `key` is valid until the next call.
  [[nodiscard]] bool next_key(std::string_view& key);
  void begin_array() { begin('[', "an array"); }
  /// False at the array's end.
  [[nodiscard]] bool next_element();

  /// The next two are valid until the next call.
  [[nodiscard]] std::string_view read_string();
  /// A number as it is written. Numbers that are not finite are written in several ways.
  [[nodiscard]] std::string_view read_number();
  /// A number of microseconds, as nanoseconds.
  [[nodiscard]] std::int64_t read_time();
  /// A whole number from 0 to `most`. `what` names it in errors.
  [[nodiscard]] std::uint64_t read_count(std::uint64_t most, std::string_view what);
  void skip();
  /// Throws Error if more follows than white space.
  void finish();

  /// Throws Error with the place of what was read last.
  [[noreturn]] void fail(std::string_view expected, std::string_view found = {}) const;

 private:
  void begin(char bracket, std::string_view name);
  bool refill(std::size_t keep_from);
  char next_visible();
  void take(char expected, std::string_view name);
  [[nodiscard]] bool next_item(char end, std::string_view what);
  std::string_view unescape(std::size_t begin);
  void skip_string();
  void skip_scalar();

  TextSource source_;
  std::string file_;
  std::vector<char> window_;
  std::size_t at_ = 0;         ///< in the window
  std::size_t end_ = 0;        ///< of the text in it
  std::size_t value_ = 0;      ///< where the value read last begins
  std::uint64_t before_ = 0;   ///< bytes of text before the window
  std::vector<bool> started_;  ///< for each open object or array: it has an item
  std::string unescaped_;
};

}  // namespace penstock
