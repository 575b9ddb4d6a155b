#include "data/shared/block_reader.hpp"

#include "data/async_reads.hpp"
#include "data/file_reader.hpp"
#include "data/kept_samples.hpp"
#include "data/mapped_files.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 20;
// If a tenth of the pages is missing, one of a thousand looks at all of them finds none.
constexpr std::uint64_t kLooks = 64;
constexpr std::uint64_t kAsksBetweenLooks = std::uint64_t{1} << 16;

/// Each `turn` looks at other pages.
bool misses_pages(const FieldReader& reader, MappedFiles& files, std::uint64_t turn) {
  const std::size_t sample_bytes = reader.field().sample_bytes();
  const std::uint64_t part = reader.sample_count() * sample_bytes / kLooks;
  for (std::uint64_t look = 0; look < kLooks; ++look) {
    const std::uint64_t at = part * look + turn * std::uint64_t{0x9E3779B1} % part;
    const MappedFiles::Place place = files.find({reader.address(at / sample_bytes) + at % sample_bytes, 1});
    if (place.file != nullptr && !place.file->residency.has(place.offset, 1)) return true;
  }
  return false;
}

}  // namespace

BlockReader::BlockReader(std::shared_ptr<const FieldReader> reader, bool past_cache, std::size_t kept_bytes)
    : reader_(std::move(reader)),
      sample_bytes_(reader_->field().sample_bytes()),
      files_(std::make_unique<MappedFiles>()),
      kept_(past_cache && AsyncReads::of_thread().are_possible()
                ? std::make_unique<KeptSamples<std::vector<std::byte>>>(kept_bytes, reader_->sample_count())
                : nullptr) {}

BlockReader::~BlockReader() = default;

std::uint64_t BlockReader::bytes_of(const FieldReader& reader) noexcept {
  const std::uint64_t samples = reader.sample_count();
  const std::size_t bytes = reader.field().sample_bytes();
  const std::ptrdiff_t step = samples > 1 ? reader.address(1) - reader.address(0) : 0;
  return samples * (step > 0 ? std::min(bytes, static_cast<std::size_t>(step)) : bytes);
}

bool BlockReader::is_of(const FieldReader& reader) {
  if (reader.address(0) == nullptr || bytes_of(reader) < kLeastBytes) return false;
  MappedFiles files;
  return misses_pages(reader, files, 0);
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
  if (turn != before / kAsksBetweenLooks && !misses_pages(*reader_, *files_, turn)) {
    misses_pages_.store(false, std::memory_order_relaxed);
  }
}

void BlockReader::gather_past_cache(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
                                    StoreKind stores) const {
  const auto destination_of = [&](std::size_t i) {
    return destination.subspan(i * sample_bytes_, sample_bytes_);
  };
  const auto place_of = [&](std::size_t i) {
    return files_->find({reader_->address(indices[i]), sample_bytes_});
  };
  AsyncReads& reads = AsyncReads::of_thread();
  std::vector<std::size_t> direct;
  std::vector<std::size_t> in_memory;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const MappedFiles::Place place = place_of(i);
    const bool is_missing = kept_->find(indices[i]) == nullptr && place.file != nullptr &&
                            !place.file->has(place.offset, sample_bytes_);
    if (is_missing && place.is_same && place.file->direct.may_be_read()) {
      reads.want(place.file->direct, {place.offset, destination_of(i)}, i);
      direct.push_back(i);
    } else {
      if (is_missing) ask(indices.subspan(i, 1));
      in_memory.push_back(i);
    }
  }
  const auto read = [&](std::size_t i) {
    const MappedFiles::Place place = place_of(i);
    if (place.file == nullptr || !place.is_same) {
      return reader_->gather(indices.subspan(i, 1), destination_of(i), stores);
    }
    // A cut file is an error. Touched, it would be a signal.
    read_samples(place.file->direct.file(), reader_->field(), indices[i], place.offset, destination_of(i));
  };
  const auto failed = reads.read([&] {
    for (const std::size_t i : in_memory) {
      if (const auto* const kept = kept_->find(indices[i])) {
        copy_bytes(destination_of(i).data(), kept->data(), sample_bytes_, stores);
      } else {
        read(i);
      }
    }
  });
  for (const std::size_t i : failed) read(i);
  for (const std::size_t i : direct) {
    const auto bytes = destination_of(i);
    kept_->keep(indices[i], sample_bytes_, bytes.begin(), bytes.end());
  }
  direct_reads_ += direct.size();
}

}  // namespace penstock
