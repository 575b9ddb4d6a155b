#include "data/deflate.hpp"

#include "data/malformed.hpp"

#include <penstock/core/error.hpp>

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace penstock {

struct DeflateStream::State {
  State(ByteSource from, const std::string& name) : source(from), file(name) {
    constexpr int kWithoutHeader = -15;  // and a window of 32 KiB
    if (inflateInit2(&zlib, kWithoutHeader) != Z_OK)
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
      ended = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      throw_malformed(file, offset(), "deflated data",
                      fmt::format("damage ({})", zlib.msg != nullptr ? zlib.msg : "zlib gives no reason"));
    }
  }

  ByteSource source;
  std::string file;
  std::array<std::byte, std::size_t{64} << 10> input;
  z_stream zlib{};
  std::uint64_t fetched = 0;
  bool ended = false;
};

DeflateStream::DeflateStream(ByteSource source, const std::string& file)
    : state_(std::make_unique<State>(source, file)) {}

DeflateStream::~DeflateStream() = default;

std::size_t DeflateStream::read(std::span<std::byte> destination) {
  State& state = *state_;
  std::size_t done = 0;
  while (done < destination.size()) {
    // Even without more input, zlib may hold the rest of a match that did not fit the output.
    const bool fed = state.refill();
    if (!fed && state.ended) break;
    if (state.ended)
      throw_malformed(state.file, state.offset(), "the end of the deflated data", "more bytes");
    const auto room =
        static_cast<uInt>(std::min<std::size_t>(destination.size() - done, std::numeric_limits<uInt>::max()));
    state.zlib.next_out = reinterpret_cast<Bytef*>(destination.data() + done);
    state.zlib.avail_out = room;
    state.step();
    const std::size_t got = room - state.zlib.avail_out;
    if (!fed && got == 0 && !state.ended)
      throw_malformed(state.file, state.offset(), "more deflated data", "the end of the file");
    done += got;
  }
  return done;
}

}  // namespace penstock
