#pragma once

#include "doctor/rules/findings.hpp"
#include "doctor/timeline/timeline.hpp"

#include <penstock/core/function_ref.hpp>

#include <string_view>

namespace penstock {

/// Takes the next piece of a text.
using TextSink = FunctionRef<void(std::string_view)>;

/// Writes a timeline, and what was found in it, as JSON of Chrome's trace event format, which ui.perfetto.dev
/// opens. Streams, host threads, steps and findings have a track each. A finding's track holds the finding,
/// and in it its evidence. Times are in microseconds since the first record.
///
/// The events of a track are in order, and nest. If those of a stream or thread do not, they get further
/// tracks, at most 64; what still does not nest is left out, and `otherData` counts it.
///
/// Gives the text to `sink` in pieces, so that it needs little memory. Passes on what `sink` throws. `gzip`:
/// the text is packed.
void write_chrome_trace(const Timeline& timeline, const Diagnosis& diagnosis, TextSink sink,
                        bool gzip = false);

}  // namespace penstock
