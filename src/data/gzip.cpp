#include "data/gzip.hpp"

#include "data/malformed.hpp"

#include <penstock/core/error.hpp>

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <string_view>

namespace penstock {

namespace {

// zlib's code for a window of 32 KiB and the expected header.
int window_of(PackedFormat format) { return format == PackedFormat::gzip ? 15 + 16 : -15; }

}  // namespace

struct GzipStream::State {
  State(ByteSource from, const std::string& name, PackedFormat packed)
      : source(from),
        file(name),
        format(packed),
        what(packed == PackedFormat::gzip ? "gzip data" : "deflated data") {
    if (inflateInit2(&zlib, window_of(packed)) != Z_OK)
      throw Error("zlib could not be initialized: out of memory.");
  }
  ~State() { inflateEnd(&zlib); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::uint64_t offset() const { return fetched - zlib.avail_in; }

  // False at the end of the file.
  bool refill() {
    if (zlib.avail_in > 0) return true;
    const std::size_t got = source(input);
    zlib.next_in = reinterpret_cast<Bytef*>(input.data());
    zlib.avail_in = static_cast<uInt>(got);
    fetched += got;
    return got > 0;
  }

  void step() {
    const int result = inflate(&zlib, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      inside_member = false;
      inflateReset(&zlib);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      throw_malformed(file, offset(), what,
                      fmt::format("damage ({})", zlib.msg != nullptr ? zlib.msg : "zlib gives no reason"));
    }
  }

  ByteSource source;
  std::string file;
  PackedFormat format;
  std::string_view what;
  std::array<std::byte, std::size_t{64} << 10> input;
  z_stream zlib{};
  std::uint64_t fetched = 0;
  bool inside_member = true;  // an empty file is not gzip data
};

GzipStream::GzipStream(ByteSource source, const std::string& file, PackedFormat format)
    : state_(std::make_unique<State>(source, file, format)) {}

GzipStream::~GzipStream() = default;

std::size_t GzipStream::read(std::span<std::byte> destination) {
  State& state = *state_;
  std::size_t done = 0;
  while (done < destination.size()) {
    // Even without more input, zlib may hold the rest of a match that did not fit the output.
    const bool fed = state.refill();
    if (!fed && !state.inside_member) break;
    if (state.format == PackedFormat::deflate && !state.inside_member) {
      throw_malformed(state.file, state.offset(), "the end of the deflated data", "more bytes");
    }
    state.inside_member = true;
    const auto room =
        static_cast<uInt>(std::min<std::size_t>(destination.size() - done, std::numeric_limits<uInt>::max()));
    state.zlib.next_out = reinterpret_cast<Bytef*>(destination.data() + done);
    state.zlib.avail_out = room;
    state.step();
    const std::size_t got = room - state.zlib.avail_out;
    if (!fed && got == 0 && state.inside_member) {
      throw_malformed(state.file, state.offset(), fmt::format("more {}", state.what), "the end of the file");
    }
    done += got;
  }
  return done;
}

}  // namespace penstock
