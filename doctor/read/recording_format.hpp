#pragma once

#include "doctor/timeline/timeline.hpp"
#include "doctor/timeline/work_labels.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

/// The file that the recorder writes and `read_recording` reads, one for each process. It is mapped while the
/// program runs, so that what was written survives the program's end, however it comes. Little endian, as all
/// GPUs' hosts.
///
///   header | text: entries that are added and stay | ring: the last records
///
/// Each entry of the text is a TextEntry, `bytes` bytes, and zeros up to a multiple of 4.
namespace penstock::recording {

inline constexpr char kMagic[8] = {'p', 'e', 'n', 's', 't', 'o', 'c', 'k'};
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::size_t kTextOffset = 4096;
inline constexpr std::size_t kTextBytes = std::size_t{2} << 20;
inline constexpr std::size_t kRingOffset = kTextOffset + kTextBytes;  ///< as the recorder makes it
inline constexpr std::size_t kMostRecords = std::size_t{1} << 28;
inline constexpr std::size_t kMostStreams = 4096;  ///< whose kinds are kept
inline constexpr std::size_t kMostFrames = 64;     ///< of a stack
inline constexpr std::uint64_t kSmallCopyBytes = std::uint64_t{64}
                                                 << 10;  ///< up to here, contents are not kept
/// Of the contents of a copy, so many bytes are looked at, in so many pieces from all over it.
inline constexpr std::size_t kSampleBytes = 4096;
inline constexpr std::size_t kSamplePieces = 32;
/// Of file names: the process's number stands before it.
inline constexpr char kSuffix[] = ".penstock";
/// Behind that while the file has no header. If it stays, the process was ended then, or there was no room.
inline constexpr char kUnfinishedSuffix[] = ".unfinished";

/// Loaders whose waits are known. Those of Python are looked for: a thread is in `__next__` of a file whose
/// path ends so. The last one tells of its waits itself (report_wait.hpp).
struct LoaderKind {
  std::string_view file;  ///< empty: compiled
  std::string_view name;  ///< in a report
};
inline constexpr LoaderKind kLoaders[] = {{"torch/utils/data/dataloader.py", "DataLoader.__next__"},
                                          {"penstock/_loader/loader.py", "penstock.Loader.__next__"},
                                          {"penstock/_feed/iterator.py", "penstock.feed.__next__"},
                                          {"penstock/_feed/native.py", "penstock.feed.__next__"},
                                          {"", "penstock::Loader::next"}};
inline constexpr std::size_t kCompiledLoader = std::size(kLoaders) - 1;

enum class State : std::uint32_t {
  running = 0,
  finished = 1,  ///< the program ended by itself, and everything was written
  yielded = 2,   ///< another client of CUPTI came: nothing is recorded from then on
};

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t record_bytes;
  std::int64_t process;
  std::uint64_t ring_offset;
  std::uint64_t capacity;       ///< records that the ring holds
  std::uint64_t written;        ///< records in all, also those that were written over
  std::uint64_t text_bytes;     ///< of complete entries
  std::uint64_t dropped;        ///< records that CUPTI had no room for
  std::uint64_t without_place;  ///< calls whose stack could not be kept, as the text is full
  std::uint32_t unused;         ///< earlier recorders wrote the version of CUPTI
  State state;
  std::uint64_t unused_before[3];  ///< earlier recorders wrote when they began, and where, between the text
                                   ///< and the ring, they kept sums
  std::uint32_t left_out;          ///< LeftOut, in bits
  std::uint32_t refused;  ///< of these, the ones that CUPTI refused; earlier recorders did not say so
};
static_assert(sizeof(Header) == 112);

/// What the program was recorded without: somebody wanted that, CUPTI refused it, or there was none.
enum LeftOut : std::uint32_t {
  kWithoutKernels = 1,
  kWithoutLaunches = 2,
  kWithoutCalls = 4,
  kWithoutCopies = 8,
  kWithoutSomeCopyCalls = 16,  ///< of the calls that copy; copies without a call tell whether it matters
  kWithoutPython = 32,         ///< the process had no interpreter when it began to use CUDA
};

enum class TextType : std::uint32_t {
  frame = 1,        ///< a line (u32), bytes of the file's name (u32), the file's name, the function's name.
                    ///< Numbered from 0 on
  stack = 2,        ///< the numbers of its frames (u32), the innermost first. Numbered from 1 on
  note = 3,         ///< a sentence for the report
  device = 4,       ///< its number (u32) and its name
  code = 5,         ///< a frame of compiled code, numbered with the others, as earlier recorders wrote them
  device_node = 6,  ///< this and the next one: of NUMA, as earlier recorders wrote them
  only_node = 7,
  context = 8,   ///< its number (u32), that of its device (u32), and that of its default stream (u32), which
                 ///< earlier recorders did not write
  stream = 9,    ///< the number of its context (u32), its own (u32), and its kind (u32) as CUPTI's
  watched = 10,  ///< a thread of Python that is looked at: its number (u32)
};
struct TextEntry {
  std::uint32_t bytes;
  TextType type;
};

enum class RecordType : std::uint8_t {
  copy = 1,  ///< detail: kind of copy; extra: kinds of memory, the source's in the lower half. Numbers as
             ///< CUPTI's
  work = 2,  ///< extra: kMemorySet, or an odd number: above its kGridBits, the same for the same kernel, and
             ///< in all the same for the same grid, too. Earlier recorders mixed both. Of kernels that send
             ///< data between GPUs, a multiple of 4 (work_labels.hpp), which earlier recorders did not tell
  call = 3,  ///< detail: CallKind; place: number of its stack, 0 if there is none; extra: earlier recorders
             ///< wrote NUMA nodes
  wait = 4,  ///< a thread was seen in next() of a loader; detail: its index in kLoaders
  range =
      5,  ///< a range of NVTX begins (detail 0) or ends (1); correlation: its number; contents: of its name
  look = 6,  ///< a thread was seen in no call that tells the recorder, and in no next() of a loader
};

struct Record {
  std::int64_t begin;  ///< nanoseconds of CUPTI's clock
  std::int64_t end;
  union {
    std::uint64_t bytes;  ///< of copies
    std::uint64_t place;  ///< of calls, waits and looks
  };
  std::uint32_t correlation;
  std::uint32_t stream;    ///< of calls: the thread
  std::uint32_t sequence;  ///< the lower half of the number of records before it, plus one; written last
  std::uint16_t extra;
  std::uint8_t detail;
  RecordType type;
  union {
    std::uint64_t contents;  ///< of calls: an odd hash of what a copy takes to a device; 0: not known. Some
                             ///< earlier recorders wrote even ones, which also tell of the values. Of ranges
                             ///< that begin: a hash of the name
    std::uint16_t device;    ///< of copies and work
  };
};
static_assert(sizeof(Record) == 48);

}  // namespace penstock::recording
