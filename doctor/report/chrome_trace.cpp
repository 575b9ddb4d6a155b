#include "doctor/report/chrome_trace.hpp"

#include "doctor/report/trace_report.hpp"
#include "doctor/timeline/device_activity.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
constexpr std::size_t kMostRows = 64;

// Processes in the viewer's order. A GPU has the number after these.
constexpr int kDoctorProcess = 1;
constexpr int kHostProcess = 2;
constexpr int kFirstDevice = 3;

/// Text between quotes, as JSON has it. Bytes that are not UTF-8 are replaced.
std::string json_text(std::string_view text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

class GzipSink {
 public:
  explicit GzipSink(TextSink sink) : sink_(sink) {
    constexpr int kGzip = 15 + 16;
    constexpr int kMemory = 8;
    if (::deflateInit2(&stream_, Z_BEST_SPEED, Z_DEFLATED, kGzip, kMemory, Z_DEFAULT_STRATEGY) != Z_OK)
      throw std::bad_alloc();
  }
  ~GzipSink() { ::deflateEnd(&stream_); }
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  void operator()(std::string_view text) { pack(text, Z_NO_FLUSH); }
  void finish() { pack({}, Z_FINISH); }

 private:
  void pack(std::string_view text, int flush) {
    // zlib does not write to its input.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream_.avail_in = static_cast<uInt>(text.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(packed_.data());
      stream_.avail_out = static_cast<uInt>(packed_.size());
      ::deflate(&stream_, flush);
      sink_({packed_.data(), packed_.size() - stream_.avail_out});
    } while (stream_.avail_out == 0);
  }

  TextSink sink_;
  z_stream stream_{};
  std::array<char, kPieceBytes> packed_{};
};

/// What a viewer shows as one line, or as several if its events do not nest.
struct Track {
  int process = 0;
  std::string name;
  struct Row {
    int thread = 0;
    std::vector<TraceTime> open;  ///< ends of the events around the last one, the outermost first
  };
  std::vector<Row> rows;
};

/// Takes the records of two lists together, in the order of `key`, in which each of them is. Of equal ones,
/// the first list's comes first.
template <typename A, typename B, typename Key, typename TakeA, typename TakeB>
void in_order(const std::vector<A>& first, const std::vector<B>& second, const Key& key, const TakeA& take_a,
              const TakeB& take_b) {
  auto a = first.begin();
  for (const B& b : second) {
    for (; a != first.end() && key(*a) <= key(b); ++a) take_a(*a);
    take_b(b);
  }
  std::for_each(a, first.end(), take_a);
}

class ChromeTraceWriter {
 public:
  ChromeTraceWriter(const Timeline& timeline, const Diagnosis& diagnosis, TextSink sink)
      : timeline_(timeline), diagnosis_(diagnosis), sink_(sink) {
    for (const std::string& name : timeline.names) names_.push_back(json_text(name));
  }

  void write() {
    origin_ = whole_window(timeline_).begin;
    for (const TimeSpan& step : timeline_.steps) origin_ = std::min(origin_, step.begin);
    text_ = R"({"displayTimeUnit":"ns","traceEvents":[)";
    name_process(kDoctorProcess, "penstock doctor");
    write_steps();
    for (const Finding& finding : diagnosis_.findings) write_finding(finding);
    name_process(kHostProcess, "host");
    write_host();
    for (const DeviceAccount& account : diagnosis_.accounts) {
      const std::string name = account.name.empty() ? "" : fmt::format(" ({})", account.name);
      name_process(kFirstDevice + account.device, fmt::format("GPU {}{}", account.device, name));
    }
    write_devices();
    add("\n],\"otherData\":{{\"written_by\":\"penstock doctor\",\"left_out\":\"{}\"}}}}\n", left_out_);
    sink_(text_);
  }

 private:
  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
    if (text_.size() < kPieceBytes) return;
    sink_(text_);
    text_.clear();
  }

  void begin_event() {
    text_ += any_ ? ",\n" : "\n";
    any_ = true;
  }

  void describe(std::string_view what, int process, int thread, std::string_view value) {
    begin_event();
    add(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}})", what, process, thread, value);
  }

  void name_process(int process, std::string_view name) {
    describe("process_name", process, 0, fmt::format(R"("name":{})", json_text(name)));
    describe("process_sort_index", process, 0, fmt::format(R"("sort_index":{})", process));
  }

  /// The thread number of a row of `track` in which the event nests; nullopt if there is none left.
  std::optional<int> place(Track& track, TimeSpan time) {
    for (Track::Row& row : track.rows) {
      while (!row.open.empty() && row.open.back() <= time.begin) row.open.pop_back();
      if (!row.open.empty() && time.end > row.open.back()) continue;
      row.open.push_back(time.end);
      return row.thread;
    }
    if (track.rows.size() == kMostRows) return std::nullopt;
    const int thread = next_thread_++;
    const std::string name =
        track.rows.empty() ? track.name : fmt::format("{} ({})", track.name, track.rows.size() + 1);
    describe("thread_name", track.process, thread, fmt::format(R"("name":{})", json_text(name)));
    describe("thread_sort_index", track.process, thread, fmt::format(R"("sort_index":{})", thread));
    track.rows.push_back({thread, {time.end}});
    return thread;
  }

  /// `name` and `arguments` are JSON.
  void write_event(Track& track, TimeSpan time, std::string_view category, std::string_view name,
                   std::string_view arguments = {}) {
    const std::optional<int> thread = place(track, time);
    if (!thread) {
      ++left_out_;
      return;
    }
    const auto begin = static_cast<std::uint64_t>(time.begin - origin_);
    const auto length = static_cast<std::uint64_t>(time.end - time.begin);
    begin_event();
    add(R"({{"ph":"X","cat":"{}","name":{},"pid":{},"tid":{},"ts":{}.{:03},"dur":{}.{:03})", category, name,
        track.process, *thread, begin / 1000, begin % 1000, length / 1000, length % 1000);
    if (!arguments.empty()) add(R"(,"args":{})", arguments);
    text_ += '}';
  }

  void write_steps() {
    Track track{kDoctorProcess, "steps", {}};
    for (std::size_t i = 0; i < timeline_.steps.size(); ++i)
      write_event(track, timeline_.steps[i], "step", fmt::format("\"step {}\"", i + 1));
  }

  void write_finding(const Finding& finding) {
    const DeviceAccount* const account = diagnosis_.account(finding.device);
    if (account == nullptr) return;
    const std::string name =
        fmt::format("{}: {}", severity_name(finding.severity), cli::finding_name(finding, diagnosis_));
    Json places = Json::array();
    for (const FindingPlace& place : finding.places) places.push_back(cli::place_name(place));
    const std::string gain = account->steps > 0 ? "gain of a step" : "gain";
    const Json arguments = {{"text", finding.text},
                            {"why", finding.meaning},
                            {"change", finding.change},
                            {"with penstock", finding.penstock_change},
                            {gain + ", from (s)", finding.gain.low},
                            {gain + ", to (s)", finding.gain.high},
                            {"places", places}};
    Track track{kDoctorProcess, name, {}};
    const TimeSpan window = account->window;
    write_event(track, window, "finding", json_text(name),
                arguments.dump(-1, ' ', true, Json::error_handler_t::replace));
    const std::string id = json_text(finding.id);
    for (const TimeSpan& time : finding.evidence) {
      const TimeSpan within{std::max(time.begin, window.begin), std::min(time.end, window.end)};
      if (within.begin < within.end) write_event(track, within, "evidence", id);
    }
  }

  void write_host() {
    Track track;
    std::optional<std::uint16_t> thread;
    const auto track_of = [&](std::uint16_t of) -> Track& {
      if (thread != of) track = {kHostProcess, fmt::format("thread {}", of), {}};
      thread = of;
      return track;
    };
    in_order(
        timeline_.host, timeline_.calls,
        [](const auto& record) { return std::tuple(record.thread, record.time.begin, -record.time.end); },
        [&](const TimelineHostSpan& span) {
          constexpr std::array<std::string_view, 3> kCategories = {"frame", "operator", "loader"};
          write_event(track_of(span.thread), span.time, kCategories[static_cast<std::size_t>(span.kind)],
                      names_[span.name]);
        },
        [&](const TimelineCall& call) {
          write_event(track_of(call.thread), call.time, "call",
                      fmt::format("\"{}\"", call_kind_name(call.kind)));
        });
  }

  void write_devices() {
    std::map<std::pair<std::uint16_t, std::uint32_t>, Track> tracks;
    const auto track_of = [&](const auto& record) -> Track& {
      Track& track = tracks[{record.device, record.stream}];
      if (track.process == 0)
        track = {kFirstDevice + record.device, fmt::format("stream {}", record.stream), {}};
      return track;
    };
    in_order(
        timeline_.work, timeline_.copies,
        [](const auto& record) { return std::pair(record.time.begin, -record.time.end); },
        [&](const TimelineWork& work) { write_event(track_of(work), work.time, "kernel", "\"kernel\""); },
        [&](const TimelineCopy& copy) {
          write_event(track_of(copy), copy.time, "copy",
                      fmt::format("\"copy {}\"", copy_direction_name(copy.direction)), copy_arguments(copy));
        });
  }

  static std::string copy_arguments(const TimelineCopy& copy) {
    const auto kind = [](const std::optional<MemoryKind>& of) {
      return of ? memory_kind_name(*of) : std::string_view("unknown");
    };
    const auto nanoseconds = static_cast<double>(std::max<TraceTime>(copy.time.end - copy.time.begin, 1));
    return fmt::format(R"({{"bytes":{},"GB/s":{:.4g},"from":"{}","to":"{}","correlation":{}}})", copy.bytes,
                       static_cast<double>(copy.bytes) / nanoseconds, kind(copy.source),
                       kind(copy.destination), copy.correlation);
  }

  const Timeline& timeline_;
  const Diagnosis& diagnosis_;
  TextSink sink_;
  std::vector<std::string> names_;  ///< as JSON
  std::string text_;
  TraceTime origin_ = 0;
  int next_thread_ =
      1001;  // apart from the processes' numbers: a thread of the same is taken for the main one
  bool any_ = false;
  std::uint64_t left_out_ = 0;
};

}  // namespace

void write_chrome_trace(const Timeline& timeline, const Diagnosis& diagnosis, TextSink sink, bool gzip) {
  if (!gzip) return ChromeTraceWriter(timeline, diagnosis, sink).write();
  GzipSink packed(sink);
  ChromeTraceWriter(timeline, diagnosis, packed).write();
  packed.finish();
}

}  // namespace penstock
