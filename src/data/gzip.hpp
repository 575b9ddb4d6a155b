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

enum class PackedFormat {
  gzip,     ///< members following one another, each with its checksum
  deflate,  ///< one stream without a header, as in .zip archives
};

/// Unpacks deflated data as it is read. Keeps at most a window in memory.
class GzipStream {
 public:
  /// `source` outlives the stream; `file` names it in errors.
  GzipStream(ByteSource source, const std::string& file, PackedFormat format = PackedFormat::gzip);
  ~GzipStream();
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  /// Fills `destination`. Returns the bytes written: fewer only at the end of the data, once gzip's checksums
  /// have been found right. Throws Error for damaged or truncated data, or deflated data that end before
  /// their source.
  std::size_t read(std::span<std::byte> destination);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
