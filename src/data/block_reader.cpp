#include "data/shared/block_reader.hpp"

#include "data/async_reads.hpp"
#include "data/file_reader.hpp"
#include "data/kept_samples.hpp"
#include "data/mapped_files.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/fork.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 20;
// If a tenth of the pages is missing, one of a thousand looks at all of them finds none.
constexpr std::uint64_t kLooks = 64;
constexpr std::uint64_t kAsksBetweenLooks = std::uint64_t{1} << 16;

constexpr std::size_t kPartBytes = std::size_t{256} << 10;  ///< of one read
/// Small samples that are neighbours in a file are one read of so many bytes at most.
constexpr std::size_t kMergedBytes = std::size_t{64} << 10;
/// Of a thread. A disk reads 32 samples of 150 KB together as fast as it can, and needs 128 of 4 KiB.
constexpr std::size_t kMostUnderWay = std::size_t{6} << 20;

/// `turn`: looks at other pages.
bool misses_pages(const FieldReader& reader, std::size_t sample_bytes, MappedFiles& files,
                  std::uint64_t turn) {
  const std::uint64_t bytes = reader.sample_count() * sample_bytes;
  const std::uint64_t part = bytes / kLooks;
  for (std::uint64_t look = 0; look < kLooks; ++look) {
    const std::uint64_t at = part * look + turn * std::uint64_t{0x9E3779B1} % part;
    const std::byte* const sample = reader.address(at / sample_bytes);
    if (sample == nullptr) return false;
    const MappedFiles::Place place = files.find({sample + at % sample_bytes, 1});
    if (place.file != nullptr && !place.file->residency.has(place.offset, 1)) return true;
  }
  return false;
}

/// Bytes that a sample wants from a file.
struct Wanted {
  DirectFile* file = nullptr;
  FilePiece piece;
  std::size_t position = 0;  ///< of the sample in its batch
  [[nodiscard]] std::uint64_t end() const noexcept { return piece.offset + piece.destination.size(); }
};

/// Wanted bytes that one read brings.
struct Part {
  DirectFile* file = nullptr;
  std::size_t first = 0;  ///< of the wanted
  std::size_t count = 0;
  std::size_t bytes = 0;
};

}  // namespace

/// What one thread reads with. Its vectors keep their memory.
struct BlockReader::Desk {
  static constexpr std::size_t kBuffer = kPartBytes + BlockRead::kSpareBytes;

  Desk() {
    for (std::size_t number = 0; number < AsyncReads::kMost; ++number) free.push_back(number);
  }

  void begin(std::size_t batch) {
    wanted.clear();
    pieces.clear();
    parts.clear();
    in_memory.clear();
    failed.clear();
    next = 0;
    in_memory.reserve(batch);
  }

  void want(MappedFiles::Place place, std::size_t position, std::span<std::byte> destination) {
    const std::size_t block = place.file->direct.block_bytes();
    for (std::size_t done = 0; done < destination.size();) {
      // Parts end where a block does: none is read twice.
      const std::uint64_t at = place.offset + done;
      const std::size_t most = kPartBytes - static_cast<std::size_t>(at % block);
      const auto part = destination.subspan(done, std::min(most, destination.size() - done));
      wanted.push_back({&place.file->direct, {at, part}, position});
      done += part.size();
    }
  }

  /// Neighbours in a file become one read.
  void make_parts() {
    std::ranges::sort(wanted, {}, [](const Wanted& one) { return std::pair(one.file, one.piece.offset); });
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Wanted& one = wanted[i];
      pieces.push_back(one.piece);
      if (!parts.empty() && parts.back().file == one.file) {
        Part& last = parts.back();
        const std::uint64_t begin = pieces[last.first].offset;
        const std::uint64_t end = std::max(begin + last.bytes, one.end());
        const bool touches = one.piece.offset <= align_up(begin + last.bytes, one.file->block_bytes());
        if (touches && end - begin <= kMergedBytes) {
          last.bytes = static_cast<std::size_t>(end - begin);
          ++last.count;
          continue;
        }
      }
      parts.push_back({one.file, i, 1, one.piece.destination.size()});
    }
    failed.reserve(wanted.size());
  }

  void begin_some() noexcept {
    for (; next < parts.size() && !free.empty() && bytes < kMostUnderWay; ++next) {
      const std::size_t number = free.back();
      free.pop_back();
      const Part& part = parts[next];
      of_number[number] = next;
      reads[number] = BlockRead(*part.file, std::span(pieces).subspan(part.first, part.count),
                                buffers.bytes().subspan(number * kBuffer, kBuffer));
      async.add(number, *part.file, reads[number]);
      bytes += part.bytes;
    }
    async.begin();
  }

  /// Reads all parts. `meanwhile` is what the thread does while the disk reads.
  void read(FunctionRef<void()> meanwhile) {
    struct AllEnd {  // also if `meanwhile` throws: they write to the destination
      ~AllEnd() {
        while (desk.async.under_way() > 0) desk.wait();
      }
      Desk& desk;
    } const all_end{*this};
    begin_some();
    meanwhile();
    while (async.under_way() > 0) {
      wait();
      begin_some();
    }
  }

 private:
  void wait() noexcept {
    async.wait([&](std::size_t number, std::size_t got) {
      const Part& part = parts[of_number[number]];
      bytes -= part.bytes;
      free.push_back(number);
      if (reads[number].finish(got) == part.bytes) return;
      if (got == 0) part.file->refuse();
      for (std::size_t i = 0; i < part.count; ++i) failed.push_back(wanted[part.first + i].position);
    });
  }

 public:
  const std::uint64_t generation = fork_generation();
  AsyncReads async;
  HostPages buffers{AsyncReads::kMost * kBuffer};
  std::array<BlockRead, AsyncReads::kMost> reads;
  std::array<std::size_t, AsyncReads::kMost> of_number{};  ///< its part
  std::vector<std::size_t> free;                           ///< numbers
  std::vector<Wanted> wanted;
  std::vector<FilePiece> pieces;  ///< of the wanted
  std::vector<Part> parts;
  std::vector<std::size_t> in_memory;  ///< positions of samples
  std::vector<std::size_t> failed;     ///< the same, of reads past the page cache
  std::size_t next = 0;                ///< part to begin
  std::size_t bytes = 0;               ///< under way
};

/// A forked child has none of its parent's reads.
BlockReader::Desk& BlockReader::desk_of_thread() {
  thread_local std::unique_ptr<Desk> desk;
  if (desk == nullptr || desk->generation != fork_generation()) desk = std::make_unique<Desk>();
  return *desk;
}

BlockReader::BlockReader(std::shared_ptr<const FieldReader> reader, bool past_cache, std::size_t kept_bytes)
    : reader_(std::move(reader)),
      sample_bytes_(reader_->field().sample_bytes()),
      files_(std::make_unique<MappedFiles>()),
      kept_(past_cache && desk_of_thread().async.are_possible()
                ? std::make_unique<KeptSamples>(reader_->sample_count(), sample_bytes_, kept_bytes)
                : nullptr) {}

BlockReader::~BlockReader() = default;

bool BlockReader::is_of(const FieldReader& reader) {
  const std::size_t bytes = reader.field().sample_bytes();
  if (reader.address(0) == nullptr || reader.sample_count() * bytes < kLeastBytes) return false;
  MappedFiles files;
  return misses_pages(reader, bytes, files, 0);
}

void BlockReader::gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
                         StoreKind stores) const {
  if (kept_ != nullptr) return gather_past_cache(indices, destination, stores);
  ask(indices);
  reader_->gather(indices, destination, stores);
}

void BlockReader::ask(std::span<const std::uint64_t> indices) const noexcept {
  if (!misses_pages_.load(std::memory_order_relaxed)) return;
  static const auto page = static_cast<std::uintptr_t>(::getpagesize());
  for (const std::uint64_t index : indices) {
    const auto begin = reinterpret_cast<std::uintptr_t>(reader_->address(index));
    ::madvise(reinterpret_cast<void*>(begin - begin % page), begin % page + sample_bytes_, MADV_WILLNEED);
  }
  const std::uint64_t before = asked_.fetch_add(indices.size(), std::memory_order_relaxed);
  const std::uint64_t turn = (before + indices.size()) / kAsksBetweenLooks;
  if (turn != before / kAsksBetweenLooks && !misses_pages(*reader_, sample_bytes_, *files_, turn)) {
    misses_pages_.store(false, std::memory_order_relaxed);
  }
}

void BlockReader::gather_past_cache(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
                                    StoreKind stores) const {
  const auto place_of = [&](std::size_t i) { return destination.subspan(i * sample_bytes_, sample_bytes_); };
  Desk& desk = desk_of_thread();
  desk.begin(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t wanted = desk.wanted.size();
    if (kept_->find(indices[i]).empty()) {
      const MappedFiles::Place place = files_->find({reader_->address(indices[i]), sample_bytes_});
      if (place.file != nullptr && !place.file->has(place.offset, sample_bytes_)) {
        if (place.is_same && place.file->direct.may_be_read()) {
          desk.want(place, i, place_of(i));
        } else {
          ask(indices.subspan(i, 1));
        }
      }
    }
    if (desk.wanted.size() == wanted) desk.in_memory.push_back(i);
  }
  desk.make_parts();
  desk.read([&] {
    for (const std::size_t i : desk.in_memory) {
      const auto kept = kept_->find(indices[i]);
      if (kept.empty()) {
        reader_->gather(indices.subspan(i, 1), place_of(i), stores);
      } else {
        copy_bytes(place_of(i).data(), kept.data(), sample_bytes_, stores);
      }
    }
  });
  for (const std::size_t i : desk.failed) {
    const MappedFiles::Place place = files_->find({reader_->address(indices[i]), sample_bytes_});
    read_samples(place.file->direct.file(), reader_->field(), indices[i], place.offset, place_of(i));
  }
  for (const Wanted& one : desk.wanted) kept_->keep(indices[one.position], place_of(one.position));
  direct_reads_ += indices.size() - desk.in_memory.size();
}

}  // namespace penstock
