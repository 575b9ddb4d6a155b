#pragma once

#include "cupti.hpp"
#include "recording_file.hpp"

#include <atomic>
#include <cstddef>

namespace penstock::recorder {

/// Which streams there are, and of what kind, as text of the recording. Any thread may call it.
class Streams {
 public:
  /// A program may make a stream in each step, and places need room in the text, too.
  static constexpr std::size_t kMost = recording::kMostStreams;

  static void add(const CuptiContextRecord& context, RecordingFile& file) noexcept {
    const std::uint32_t numbers[] = {context.context, context.device, context.default_stream};
    file.add_text(recording::TextType::context, numbers, sizeof numbers, {});
  }
  void add(const CuptiStreamRecord& stream, RecordingFile& file) noexcept {
    if (count_.fetch_add(1, std::memory_order_relaxed) >= kMost) return;
    const std::uint32_t numbers[] = {stream.context, stream.stream, stream.kind};
    file.add_text(recording::TextType::stream, numbers, sizeof numbers, {});
  }

 private:
  std::atomic<std::size_t> count_{0};
};

}  // namespace penstock::recorder
