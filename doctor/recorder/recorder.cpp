// libpenstock_recorder.so: the driver loads it into a program that `penstock doctor` runs, and calls
// InitializeInjection from cuInit. It records what CUPTI tells of copies, kernels and calls, with the places
// of copies and waits, into a mapped file (recording_format.hpp).
//
// It works in someone else's program. So it throws nothing, changes nothing that the program sees, calls the
// driver only for the names of devices, and stops if the program's own profiler starts.

#include "activity_buffers.hpp"
#include "contents.hpp"
#include "cupti.hpp"
#include "cupti_session.hpp"
#include "devices.hpp"
#include "doctor/read/python_files.hpp"
#include "doctor/timeline/work_labels.hpp"
#include "mix.hpp"
#include "places.hpp"
#include "python_stack.hpp"
#include "recording_file.hpp"
#include "seen_places.hpp"
#include "streams.hpp"
#include "subscriber_watch.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <span>
#include <string_view>

namespace penstock::recorder {

namespace {

using recording::Record;
using recording::RecordType;

constexpr std::uint64_t kDefaultRecords = 2'000'000;
constexpr std::uint8_t kNoLoader = recording::kCompiledLoader;  // of Python
constexpr std::uint32_t kForcedFlush = 1;
constexpr long kMillisecond = 1'000'000;  // in nanoseconds
constexpr long kSamplePeriod = 2 * kMillisecond;
constexpr long kIdlePeriod = 50 * kMillisecond;
constexpr std::uint64_t kFlushPeriod = 500 * kMillisecond;
constexpr std::uint32_t kMostSeenStacks = 1024;  // the table also has those of calls

/// A Python thread that called CUDA, whose waits for a loader, and whose other work, are looked for.
struct WatchedThread {
  std::atomic<const void*> thread{nullptr};
  std::uint32_t number = 0;

  // A wait that was seen, and that the thread notes at its next call: only it may ask the interpreter for
  // names and lines. `is_seen` says whose turn it is.
  std::atomic<bool> is_seen{false};
  std::atomic<std::uint64_t> seen_until{0};
  std::uint64_t seen_from = 0;
  std::uint8_t loader = 0;
  std::size_t frame_count = 0;
  PythonFrame frames[recording::kMostFrames];

  std::atomic<bool> is_in_call{false};  // of those that tell
  SeenPlaces seen;                      // in its own code
};

struct ThreadCall {
  int depth = 0;
  std::uint8_t kind = kNotKept;
  std::uint64_t begin = 0;
  std::uint32_t correlation = 0;
  bool is_known = false;
  std::uint32_t thread = 0;          ///< its number, once it is known
  WatchedThread* watched = nullptr;  ///< null: it is no thread of Python, or there are too many
};
thread_local ThreadCall thread_call;

/// What PENSTOCK_RECORD_WITHOUT does not name.
struct Parts {
  bool lines = true;     ///< the places of calls
  bool contents = true;  ///< of copies
};

Cupti cupti;
RecordingFile file;
CuptiSession session(cupti, file);
ActivityBuffers buffers;
Parts parts;
PythonStack python;
Places places(file, python);
std::atomic<bool> active{false};
pthread_mutex_t stopping = PTHREAD_MUTEX_INITIALIZER;
bool system_threads = false;
Devices devices;  // noted with the lock of `stopping`
Streams streams;
WatchedThread watched_threads[16];
std::atomic<std::size_t> watched_count{0};
NumberTable known_codes;  // of the worker
std::atomic<std::uint32_t> seen_stacks{0};

std::uint64_t now() noexcept {
  std::uint64_t time = 0;
  cupti.get_timestamp(&time);
  return time;
}

/// As the records of CUPTI number it.
std::uint32_t this_thread() noexcept {
  return system_threads ? static_cast<std::uint32_t>(::syscall(SYS_gettid))
                        : static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(::pthread_self()));
}

Record record_of(RecordType type, std::uint64_t begin, std::uint64_t end) noexcept {
  Record record{};
  record.type = type;
  record.begin = static_cast<std::int64_t>(begin);
  record.end = static_cast<std::int64_t>(end);
  return record;
}

void add_call(std::uint8_t kind, std::uint64_t begin, std::uint64_t end, std::uint32_t correlation,
              std::uint32_t thread, std::uint64_t place, std::uint64_t contents) noexcept {
  Record record = record_of(RecordType::call, begin, end);
  record.detail = kind;
  record.correlation = correlation;
  record.stream = thread;
  record.place = place;
  record.contents = contents;
  file.add(record);
}

WatchedThread* watch_this_thread() noexcept {
  const void* const thread = python.this_thread();
  if (thread == nullptr) return nullptr;
  const std::size_t index = watched_count.fetch_add(1);
  if (index >= std::size(watched_threads)) return nullptr;
  watched_threads[index].number = this_thread();
  if (parts.lines)
    file.add_text(recording::TextType::watched, &watched_threads[index].number, sizeof(std::uint32_t), {});
  watched_threads[index].thread.store(thread, std::memory_order_release);
  return &watched_threads[index];
}

bool are_alive(std::span<const PythonFrame> frames) noexcept {
  return python.is_running() && std::all_of(frames.begin(), frames.end(),
                                            [](const PythonFrame& frame) { return python.is_alive(frame); });
}

/// Called by the thread that waited.
void note_wait(WatchedThread& watched) noexcept {
  if (!watched.is_seen.load(std::memory_order_acquire)) return;
  const std::span<const PythonFrame> frames(watched.frames, watched.frame_count);
  Record record = record_of(RecordType::wait, watched.seen_from, watched.seen_until.load());
  record.detail = watched.loader;
  record.stream = watched.number;
  record.place = are_alive(frames) ? places.number(frames) : 0;
  file.add(record);
  watched.is_seen.store(false, std::memory_order_release);
}

/// A loop in Python is seen at many instructions. They leave room for the places of calls.
std::uint64_t number_of_seen(std::span<const PythonFrame> frames) noexcept {
  if (const std::uint64_t known = places.known(frames)) return known;
  if (seen_stacks.load(std::memory_order_relaxed) >= kMostSeenStacks || !are_alive(frames)) return 0;
  seen_stacks.fetch_add(1, std::memory_order_relaxed);
  return places.number(frames);
}

/// Called by the thread that was seen.
void note_looks(WatchedThread& watched) noexcept {
  watched.seen.take(number_of_seen, [&watched](std::uint64_t time, std::uint64_t place) {
    Record record = record_of(RecordType::look, time, time);
    record.stream = watched.number;
    record.place = place;
    file.add(record);
  });
}

/// Looks at what a call copies to a device, once the call has been made, while the device is already at work.
std::uint64_t look_at_input(int domain, std::uint32_t function, const CuptiCallDetails& details) noexcept {
  constexpr std::int32_t kToDevice = 1;  // cudaMemcpyKind
  const InputCall input = session.input_of(domain, function);
  if (!parts.contents || input == InputCall::no || details.parameters == nullptr) return 0;
  const auto& copy = *static_cast<const CuptiCopyParameters*>(details.parameters);
  // Memory of unknown whereabouts (cudaMemcpyDefault) may be managed: reading that would move it.
  if (input == InputCall::as_told && copy.direction != kToDevice) return 0;
  return hash_input(copy.source, copy.bytes);
}

/// A call of the runtime makes calls of the driver. The outermost counts, with the driver's correlation: that
/// is the one that copies have.
void on_call(void*, int domain, std::uint32_t function, const void* data) {
  if (!active.load(std::memory_order_relaxed)) return;
  const auto& details = *static_cast<const CuptiCallDetails*>(data);
  ThreadCall& call = thread_call;
  if (domain == kDriverDomain && call.correlation == 0) call.correlation = details.correlation;
  if (details.site == 0) {
    if (call.depth++ > 0) return;
    if (call.watched != nullptr) call.watched->is_in_call.store(true, std::memory_order_relaxed);
    call.kind = session.kind_of(domain, function);
    call.correlation = domain == kDriverDomain ? details.correlation : 0;
    call.begin = now();
    return;
  }
  if (call.depth == 0) return;
  if (--call.depth > 0) return;
  const std::uint64_t end = now();
  if (call.correlation == 0) call.correlation = details.correlation;
  if (!call.is_known) {
    call.is_known = true;
    call.thread = this_thread();
    call.watched = watch_this_thread();
  }
  if (call.watched != nullptr) {
    call.watched->is_in_call.store(false, std::memory_order_relaxed);
    note_wait(*call.watched);
    note_looks(*call.watched);
  }
  add_call(call.kind, call.begin, end, call.correlation, call.thread, parts.lines ? places.own() : 0,
           look_at_input(domain, function, details));
  call.correlation = 0;
}

void give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = buffers.take();
  *bytes = *buffer == nullptr ? 0 : ActivityBuffers::kBytes;
  *most_records = 0;
}

std::uint64_t hash_of(const char* text) noexcept {
  std::uint64_t hash = 0;
  std::string_view rest = text == nullptr ? "" : text;
  for (std::uint64_t part = 0; !rest.empty(); part = 0) {
    const std::size_t bytes = std::min(rest.size(), sizeof part);
    std::memcpy(&part, rest.data(), bytes);
    hash = mix(hash, part);
    rest.remove_prefix(bytes);
  }
  return hash;
}

/// The same for the same kernel with the same grid; above kGridBits, for the same kernel. Odd, or of a kernel
/// that communicates. Names of templates have hundreds of characters.
std::uint16_t label_of(const CuptiKernelRecord& kernel) noexcept {
  constexpr std::uint64_t kGrid = (1u << kGridBits) - 1;
  std::uint64_t grid = 0;
  for (const std::int32_t extent : kernel.grid) grid = mix(grid, static_cast<std::uint32_t>(extent));
  const std::uint64_t name = hash_of(kernel.name) >> 48;
  const auto label = static_cast<std::uint16_t>((name & ~kGrid) | (grid >> (64 - kGridBits)) | 1);
  const bool communicates = kernel.name != nullptr && is_communication(std::string_view(kernel.name));
  return communicates ? communication_label(label) : label;
}

/// Ranges of libraries, which have domains of their own, are no steps of the program.
void add_range_end(const CuptiMarkerRecord& marker) noexcept {
  if (marker.time == 0 || marker.domain != nullptr || (marker.flags & (kMarkerBegins | kMarkerEnds)) == 0)
    return;
  Record record = record_of(RecordType::range, marker.time, marker.time);
  record.detail = (marker.flags & kMarkerEnds) != 0 ? 1 : 0;
  record.correlation = marker.range;
  record.stream = marker.thread;
  record.contents = hash_of(marker.name);
  file.add(record);
}

void add_call_activity(const CuptiCallRecord& call) noexcept {
  const std::uint8_t kind =
      session.kind_of(call.activity == kActivityDriver ? kDriverDomain : kRuntimeDomain, call.function);
  // Others come with their places from the callbacks, if there are any.
  if (call.end == 0 || kind == kNotKept || (!is_launch(kind) && session.has_callbacks())) return;
  if (is_launch(kind)) session.look_for_doubled(call);
  add_call(kind, call.begin, call.end, call.correlation, call.thread, 0, 0);
}

void add_activity(const void* data) noexcept {
  Record record{};
  switch (*static_cast<const std::int32_t*>(data)) {
    case kActivityCopy:
    case kActivityPeerCopy: {
      const auto& copy = *static_cast<const CuptiCopyRecord*>(data);
      record = record_of(RecordType::copy, copy.begin, copy.end);
      record.detail = copy.copy_kind;
      record.extra = static_cast<std::uint16_t>(copy.source_kind | copy.destination_kind << 8);
      record.bytes = copy.bytes;
      // Copies between devices have the other device's numbers in its place. No rule asks for it.
      record.correlation = copy.activity == kActivityCopy ? copy.correlation : 0;
      record.stream = copy.stream;
      record.device = static_cast<std::uint16_t>(copy.device);
      break;
    }
    case kActivitySet: {
      const auto& set = *static_cast<const CuptiSetRecord*>(data);
      record = record_of(RecordType::work, set.begin, set.end);
      record.extra = kMemorySet;
      record.stream = set.stream;
      record.device = static_cast<std::uint16_t>(set.device);
      break;
    }
    case kActivityKernel: {
      const auto& kernel = *static_cast<const CuptiKernelRecord*>(data);
      record = record_of(RecordType::work, kernel.begin, kernel.end);
      record.extra = label_of(kernel);
      record.stream = kernel.stream;
      record.device = static_cast<std::uint16_t>(kernel.device);
      break;
    }
    case kActivityMarker:
      return add_range_end(*static_cast<const CuptiMarkerRecord*>(data));
    case kActivityContext:
      return Streams::add(*static_cast<const CuptiContextRecord*>(data), file);
    case kActivityStream:
      return streams.add(*static_cast<const CuptiStreamRecord*>(data), file);
    case kActivityDriver:
    case kActivityRuntime:
      return add_call_activity(*static_cast<const CuptiCallRecord*>(data));
    default:
      return;
  }
  if (record.end == 0) return;  // it had not ended yet when its buffer was asked for
  devices.see(record.device);
  file.add(record);
}

void read_buffer(const ActivityBuffers::Full& full) noexcept {
  const void* record = nullptr;
  while (active.load() && cupti.next_record(full.buffer, full.valid_bytes, &record) == kCuptiSuccess)
    add_activity(record);
  buffers.give_back(full.buffer);
}

void take_buffer(CuptiContext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                 std::size_t valid_bytes) {
  std::size_t dropped = 0;
  if (active.load() && cupti.dropped(context, stream, &dropped) == kCuptiSuccess && dropped > 0)
    __atomic_fetch_add(&file.header().dropped, dropped, __ATOMIC_RELAXED);
  if (!buffers.keep({buffer, valid_bytes})) read_buffer({buffer, valid_bytes});
}

/// With the lock of `stopping`.
void read_buffers() noexcept {
  for (auto full = buffers.next(); full.buffer != nullptr; full = buffers.next()) read_buffer(full);
}

void finish(recording::State state) noexcept {
  if (!active.load()) return;  // in a forked child, nobody may be there to let go of the lock
  const Lock lock(stopping);
  if (!active.load()) return;
  cupti.flush_all(kForcedFlush);
  read_buffers();
  devices.note(file);
  std::atomic_ref(file.header().state).store(state, std::memory_order_release);
  active.store(false);
}

/// The program's own profiler is about to subscribe.
void yield_to_program() {
  if (!active.load()) return;
  finish(recording::State::yielded);
  session.end();
  file.note(
      "The program started a profiler of its own, such as torch.profiler, which needs what the recorder "
      "used. "
      "Nothing was recorded from then on.");
}

/// Calls no driver in the child, and leaves the parent's file alone.
void stop_in_child() { active.store(false); }

/// What is known of a code object.
struct KnownCode {
  std::uint8_t loader = kNoLoader;  ///< whose next() it is; kNoLoader: of none
  bool names_place = true;          ///< it says where the program is
};

/// Asks for the names of a code object only once.
KnownCode code_of(const PythonFrame& frame) noexcept {
  constexpr std::uint32_t kNamesPlace = 0x100;
  const std::uint64_t key = code_key(frame);
  std::uint32_t known = known_codes.find(key);
  if (known == 0) {
    std::uint8_t loader = 0;
    while (loader < kNoLoader && !python.is_in(frame, recording::kLoaders[loader].file, "__next__")) ++loader;
    char text[1024];
    const std::string_view name = python.file_of(frame, text);
    const bool names_place =
        name.empty() || recording::is_user_file(name) || !recording::path_in_package(name).empty();
    known = (loader + 1U) | (names_place ? kNamesPlace : 0U);
    known_codes.add(key, known);
  }
  return {static_cast<std::uint8_t>((known & 0xFFu) - 1), (known & kNamesPlace) != 0};
}

struct SeenWait {
  std::size_t inner = 0;  ///< frames, from the innermost on, that are within next(); 0: it is in none
  std::uint8_t loader = kNoLoader;
};
/// A loader may be made of others. The program waits for the outermost one.
SeenWait wait_in(std::span<const PythonFrame> frames) noexcept {
  for (std::size_t i = frames.size(); i > 0; --i) {
    if (const std::uint8_t loader = code_of(frames[i - 1]).loader; loader != kNoLoader) return {i, loader};
  }
  return {};
}

/// It counts as in a loader's next() from half a period before to half a period after.
void see_wait(WatchedThread& watched, std::span<const PythonFrame> outside, std::uint8_t loader) noexcept {
  const std::uint64_t time = now();
  if (!watched.is_seen.load(std::memory_order_acquire)) {
    std::copy(outside.begin(), outside.end(), watched.frames);
    watched.frame_count = outside.size();
    watched.loader = loader;
    watched.seen_from = time - kSamplePeriod / 2;
    watched.seen_until.store(time + kSamplePeriod / 2);
    watched.is_seen.store(true, std::memory_order_release);
  } else if (std::equal(outside.begin(), outside.end(), watched.frames,
                        watched.frames + watched.frame_count)) {
    watched.seen_until.store(time + kSamplePeriod / 2);
  }
}

/// Calls other than launches tell of themselves. Whether it was in a launch, or just before or behind one,
/// the report knows. Frames inside of all that say where the program is are left out, as there are many.
void see_place(WatchedThread& watched, std::span<const PythonFrame> frames) noexcept {
  if (!parts.lines || watched.is_in_call.load(std::memory_order_relaxed)) return;
  while (!frames.empty() && !code_of(frames.front()).names_place) frames = frames.subspan(1);
  if (!frames.empty()) watched.seen.add(frames, now());
}

/// What a thread does that is not in a call of CUDA: it tells nobody, so it is looked at.
void look_at(WatchedThread& watched) noexcept {
  PythonFrame frames[recording::kMostFrames];
  const std::size_t count = python.of(watched.thread.load(std::memory_order_acquire), frames);
  const std::span<const PythonFrame> all = std::span(frames).first(count);
  const auto [inner, loader] = wait_in(all);
  if (inner == 0) return see_place(watched, all);
  if (inner < count) see_wait(watched, all.subspan(inner), loader);
}

void* work(void*) {
  std::uint64_t flushed = now();
  while (active.load()) {
    const std::size_t watched = std::min(watched_count.load(), std::size(watched_threads));
    const timespec period{0, watched > 0 ? kSamplePeriod : kIdlePeriod};
    ::nanosleep(&period, nullptr);
    for (std::size_t i = 0; i < watched; ++i) {
      if (active.load() && watched_threads[i].thread.load() != nullptr) look_at(watched_threads[i]);
    }
    if (now() - flushed < kFlushPeriod) continue;
    const Lock lock(stopping);
    if (!active.load()) break;
    watch_for_subscribers(cupti, yield_to_program);
    cupti.flush_all(0);
    read_buffers();
    session.leave_doubled_launches();
    devices.note(file);
    flushed = now();
  }
  return nullptr;
}

/// The calling thread has just waited for a compiled loader. Threads of Python are looked at instead.
void note_compiled_wait(std::uint64_t nanoseconds) noexcept {
  if (!active.load(std::memory_order_relaxed) || python.this_thread() != nullptr) return;
  const std::uint64_t end = now();
  Record record = record_of(RecordType::wait, end - std::min(nanoseconds, end), end);
  record.detail = recording::kCompiledLoader;
  record.stream = this_thread();
  file.add(record);
}

/// The program's signals are for its own threads.
bool start_worker() noexcept {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const bool started = ::pthread_create(&thread, nullptr, work, nullptr) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) return false;
  ::pthread_setname_np(thread, "penstock-record");
  ::pthread_detach(thread);
  return true;
}

void start() noexcept {
  const char* why = nullptr;
  if (!open_cupti(cupti, why)) {
    file.note(why);
    return;
  }
  int id_type = 0;
  system_threads =
      cupti.thread_id_type != nullptr && cupti.thread_id_type(&id_type) == kCuptiSuccess && id_type == 1;
  if (const char* const left_out = std::getenv("PENSTOCK_RECORD_WITHOUT");
      left_out != nullptr && *left_out != 0) {
    char note[160];
    std::snprintf(note, sizeof note, "Left out of the recording, as it was asked for: %s.", left_out);
    file.note(note);
  }
  const bool has_frames = python.attach();
  if (python.version()[0] == 0) {
    file.header().left_out |= recording::kWithoutPython;
  } else if (!has_frames) {
    char note[160];
    std::snprintf(note, sizeof note, "Places in the program: the frames of this Python %s cannot be read.",
                  python.version());
    file.note(note);
  }
  if (!session.begin(on_call, give_buffer, take_buffer)) return;
  active.store(true);
  session.enable_records();
  watch_for_subscribers(cupti, yield_to_program);
  ::pthread_atfork(nullptr, nullptr, stop_in_child);
  std::atexit([] { finish(recording::State::finished); });
  if (!start_worker())
    file.note("No thread could be started, so records are written only at the program's end.");
}

}  // namespace

}  // namespace penstock::recorder

/// Called by the driver in cuInit. 1: go on.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  using namespace penstock::recorder;
  const char* const folder = std::getenv("PENSTOCK_RECORD");
  if (folder == nullptr || file.is_open()) return 1;
  if (const char* const left_out = std::getenv("PENSTOCK_RECORD_WITHOUT")) {
    const std::string_view names = left_out;
    parts = {.lines = names.find("lines") == names.npos, .contents = names.find("contents") == names.npos};
  }
  std::uint64_t records = kDefaultRecords;
  if (const char* const most = std::getenv("PENSTOCK_RECORDS")) records = std::strtoull(most, nullptr, 10);
  if (!file.open(folder, records)) return 1;
  start();
  return 1;
}

/// Called by penstock in the program (report_wait.cpp), by a thread that has just waited so long.
extern "C" __attribute__((visibility("default"))) void penstock_recorder_waited(std::uint64_t nanoseconds) {
  penstock::recorder::note_compiled_wait(nanoseconds);
}

/// Called by NVTX at the program's first range. It has CUPTI's functions take the ranges. 0: they go nowhere.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(void* functions) {
  using namespace penstock::recorder;
  Cupti found{};
  const char* why = nullptr;
  if (std::getenv("PENSTOCK_RECORD") == nullptr || !open_cupti(found, why) || found.start_nvtx == nullptr)
    return 0;
  return found.start_nvtx(functions) == kCuptiSuccess ? 1 : 0;
}
