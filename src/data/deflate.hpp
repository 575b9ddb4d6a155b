#pragma once

#include <penstock/core/function_ref.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace penstock {

/// The most bytes that deflate can pack into one.
inline constexpr std::uint64_t kDeflateMaximumRatio = 1032;

/// Fills a span from a file's current position. Returns the bytes read: fewer only at the file's end.
using ByteSource = FunctionRef<std::size_t(std::span<std::byte>)>;

/// Unpacks deflated data without a header, as in .zip archives, as they are read. Keeps at most a window in
/// memory.
class DeflateStream {
 public:
  /// `source` outlives the stream; `file` names it in errors.
  DeflateStream(ByteSource source, const std::string& file);
  ~DeflateStream();
  DeflateStream(const DeflateStream&) = delete;
  DeflateStream& operator=(const DeflateStream&) = delete;

  /// Fills `destination`. Returns the bytes written: fewer only at the end of the data. Throws Error for
  /// damaged or truncated data, and for data that end before their source.
  std::size_t read(std::span<std::byte> destination);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
