#include "recording_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace penstock::recorder {

namespace {

using recording::Record;
using recording::TextEntry;

constexpr std::uint64_t kStepRecords = 1 << 15;  // 1.5 MiB

std::uint64_t load(const std::uint64_t& value) noexcept { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }

/// Gives the file disk space. A page of a mapping without it would end the program if the disk is full.
/// A signal ends it at its limit for files.
bool allocate(int descriptor, std::uint64_t offset, std::uint64_t bytes) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || offset + bytes > limit.rlim_cur) return false;
  int result = 0;
  do {
    result = ::posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result == EINTR);
  return result == 0;
}

}  // namespace

namespace {

/// `folder`/PROCESS.penstock, or another number of it, and the name that the file has until its header is
/// complete.
struct Names {
  char unfinished[4096];
  char finished[4096];

  bool make(const char* folder, int again) noexcept {
    char number[32] = "";
    if (again > 0) std::snprintf(number, sizeof number, "-%d", again);
    const int length =
        std::snprintf(unfinished, sizeof unfinished, "%s/%ld%s%s%s", folder, static_cast<long>(::getpid()),
                      number, recording::kSuffix, recording::kUnfinishedSuffix);
    if (length < 0 || static_cast<std::size_t>(length) >= sizeof unfinished) return false;
    std::memcpy(finished, unfinished, sizeof finished);
    finished[static_cast<std::size_t>(length) + 1 - sizeof recording::kUnfinishedSuffix] = 0;
    return true;
  }
};

/// Makes a file by its unfinished name. -1: that cannot be. A number may come again, as of processes in
/// containers.
int make_file(const char* folder, Names& names) noexcept {
  for (int again = 0; again < 100; ++again) {
    if (!names.make(folder, again)) return -1;
    const int descriptor = ::open(names.unfinished, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor < 0 && errno != EEXIST) return -1;
    if (descriptor < 0) continue;
    // Whoever has the unfinished name is the only one who may take the other one.
    if (::access(names.finished, F_OK) != 0) return descriptor;
    ::unlink(names.unfinished);
    ::close(descriptor);
  }
  return -1;
}

}  // namespace

bool RecordingFile::open(const char* folder, std::uint64_t capacity) noexcept {
  capacity = std::clamp<std::uint64_t>(capacity, 1, recording::kMostRecords);
  Names names;
  descriptor_ = make_file(folder, names);
  if (descriptor_ < 0) return false;
  const std::uint64_t bytes = recording::kRingOffset + capacity * sizeof(Record);
  void* const base = allocate(descriptor_, 0, recording::kRingOffset)
                         ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0)
                         : MAP_FAILED;
  if (base != MAP_FAILED) begin(base, capacity);
  if (base == MAP_FAILED || ::rename(names.unfinished, names.finished) != 0) {
    // The file stays, empty: its name says of which process nothing is recorded.
    if (base != MAP_FAILED) ::munmap(base, bytes);
    if (::ftruncate(descriptor_, 0) != 0) ::unlink(names.unfinished);
    ::close(descriptor_);
    descriptor_ = -1;
    base_ = nullptr;
    return false;
  }
  return true;
}

/// Writes the header.
void RecordingFile::begin(void* base, std::uint64_t capacity) noexcept {
  base_ = static_cast<std::byte*>(base);
  file_bytes_ = recording::kRingOffset;
  header().version = recording::kVersion;
  header().record_bytes = sizeof(Record);
  header().process = ::getpid();
  header().ring_offset = recording::kRingOffset;
  header().capacity = capacity;
  std::memcpy(header().magic, recording::kMagic, sizeof header().magic);
}

/// With the lock. False if the disk is full: then the ring stays as long as it is.
bool RecordingFile::extend() noexcept {
  const std::uint64_t ready = ready_.load();
  const std::uint64_t more = std::min(kStepRecords, header().capacity - ready);
  if (!allocate(descriptor_, file_bytes_, more * sizeof(Record))) {
    __atomic_store_n(&header().capacity, ready, __ATOMIC_RELEASE);
    return false;
  }
  file_bytes_ += more * sizeof(Record);
  ready_.store(ready + more);
  return true;
}

bool RecordingFile::make_room(std::uint64_t index) noexcept {
  const Lock lock(mutex_);
  while (index % std::max<std::uint64_t>(header().capacity, 1) >= ready_.load()) {
    if (!extend()) return header().capacity > 0;
  }
  return true;
}

void RecordingFile::add(Record record) noexcept {
  const std::uint64_t index = __atomic_fetch_add(&header().written, 1, __ATOMIC_RELAXED);
  std::uint64_t capacity = load(header().capacity);
  if (capacity == 0) return;
  if (index % capacity >= ready_.load(std::memory_order_acquire)) {
    if (!make_room(index)) return;
    capacity = load(header().capacity);
  }
  Record& slot =
      *reinterpret_cast<Record*>(base_ + recording::kRingOffset + index % capacity * sizeof(Record));
  // If the program ends between these, the slot holds half a record, and no number that fits.
  __atomic_store_n(&slot.sequence, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  record.sequence = 0;
  std::memcpy(&slot, &record, sizeof record);
  __atomic_store_n(&slot.sequence, static_cast<std::uint32_t>(index + 1), __ATOMIC_RELEASE);
}

bool RecordingFile::add_text(recording::TextType type, const void* head, std::size_t head_bytes,
                             std::string_view text, std::string_view more) noexcept {
  const Lock lock(mutex_);
  const std::size_t bytes = head_bytes + text.size() + more.size();
  const std::size_t padded = (bytes + 3) / 4 * 4;
  const std::uint64_t used = header().text_bytes;
  if (padded > recording::kTextBytes || used + sizeof(TextEntry) + padded > recording::kTextBytes)
    return false;
  std::byte* to = base_ + recording::kTextOffset + used;
  const TextEntry entry{static_cast<std::uint32_t>(bytes), type};
  const auto put = [&to](const void* from, std::size_t count) {
    if (count > 0) std::memcpy(to, from, count);
    to += count;
  };
  put(&entry, sizeof entry);
  put(head, head_bytes);
  put(text.data(), text.size());
  put(more.data(), more.size());
  __atomic_store_n(&header().text_bytes, used + sizeof entry + padded, __ATOMIC_RELEASE);
  return true;
}

}  // namespace penstock::recorder
